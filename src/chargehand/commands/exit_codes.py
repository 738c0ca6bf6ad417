"""The exit codes, which mean the same for every command."""

SUCCEEDED = 0
FAILED = 1
REFUSED = 2
CANCELLED = 3
UNSURE = 4
INTERRUPTED = 130

MEANINGS = {
    SUCCEEDED: "it went well; of a job that was watched: it succeeded",
    FAILED: "it did not: the job failed, a check of `doctor` failed, a BMC could not be asked, a recipe is not valid, of several some were refused",
    REFUSED: "nothing was done: the command was not understood, or the server refused or could not be reached; stderr says why",
    CANCELLED: "the job that was watched was cancelled",
    UNSURE: "it may have been done: it was sent, and the answer was lost or the server broke; stderr says how to find out, or to repeat it safely",
    INTERRUPTED: "Ctrl-C ended the command; what the server does goes on",
}

OF_OUTCOMES = {"succeeded": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED}
