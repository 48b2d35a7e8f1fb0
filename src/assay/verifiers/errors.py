"""What a verifier may raise to say that it has no verdict."""


class CannotGrade(Exception):
    """This answer cannot be graded by this verifier now: a service it needs is away, say.

    The runner ends with exit code 1 and writes no reward. It is not for bad answers: those get a low reward.
    """

    def __init__(self, reason: str) -> None:
        """`reason` is one sentence for the person who reads the report."""
        super().__init__(reason)
        self.reason = reason


class JudgeUnparseable(Exception):
    """A judge replied, and the reply cannot be used: it has no text, or is not of the form that was asked for."""
