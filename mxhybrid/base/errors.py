"""The exceptions that mxhybrid raises; all derive from :class:`HybridError`."""


class HybridError(RuntimeError):
    """Base class: anything that mxhybrid itself found wrong."""


class SettingError(HybridError, ValueError):
    """A setting, an environment or a combination that cannot work; raised before the job is joined or anything sent."""


class InputError(HybridError, ValueError):
    """A key, array or optimizer that a call cannot accept; raised before anything of the call is sent."""


class JobError(HybridError):
    """The job cannot go on: another process of it failed, ended too early or never arrived."""


class RefusedError(HybridError):
    """A message that no process of this job has sent, or that was sent before."""


class CheckpointError(HybridError):
    """A checkpoint cannot be written, cannot be read, or does not fit the model; raised alike on all workers."""
