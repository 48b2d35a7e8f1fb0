"""The launcher: the program that sets up every sandbox of the provider `namespaces`.

It runs as a process of its own, in which nothing of Assay but this folder is loaded, and the standard library alone.
`server` is the slot server, `tenant` the sandbox that it has, `root` its root file system, `init` its pid 1, `command` what is
forked for a command and `rights` what that gives up first. `turning` makes the server an interpreter, `ready` and `script`
run programs in forks of it, `pages` has such a fork's memory ready. `kernel` are the system calls, `wire` is how supervisor and
server talk; both serve the supervisor, too. Never imported by the rest of Assay: this file imports nothing.
"""
