"""The exit codes, which mean the same for every command."""

SUCCEEDED = 0
FAILED = 1
REFUSED = 2
CANCELLED = 3
UNSURE = 4
INTERRUPTED = 130

MEANINGS = {
    SUCCEEDED: "the command succeeded; if it watched a job, the job succeeded",
    FAILED: "the command failed: the job failed, a check of `doctor` failed, a BMC could not be asked, a recipe is not valid, or some of several ids were refused",
    REFUSED: "nothing was done: the command was not understood, or the server refused or could not be reached; stderr says why",
    CANCELLED: "the job that was watched was cancelled",
    UNSURE: "the server may have done it: the request was sent, and the answer was lost or the server failed; stderr says how to check, or how to repeat it safely",
    INTERRUPTED: "Ctrl-C ended the command; the server continues its work",
}

OF_OUTCOMES = {"succeeded": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED}
