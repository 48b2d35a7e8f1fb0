"""What an agent left behind: captured safely, named by digest; and the only ways that host code touches it."""

from assay.workspaces.archive import ArchiveInvalid, ArchiveTooLarge
from assay.workspaces.caps import Caps
from assay.workspaces.capture import Capture, WorkspaceInvalid, capture
from assay.workspaces.inside import find_inside
from assay.workspaces.listing import Found, list_folder
from assay.workspaces.opener import Unreadable, Why, read_file, show
from assay.workspaces.part import take_part
from assay.workspaces.scratch import finish_removals, process_folder, scratch_folder
from assay.workspaces.tree import copy_tree, remove_tree

__all__ = [
    "ArchiveInvalid",
    "ArchiveTooLarge",
    "Caps",
    "Capture",
    "Found",
    "Unreadable",
    "Why",
    "WorkspaceInvalid",
    "capture",
    "copy_tree",
    "find_inside",
    "finish_removals",
    "list_folder",
    "process_folder",
    "read_file",
    "remove_tree",
    "scratch_folder",
    "show",
    "take_part",
]
