"""The exceptions that mxhybrid raises; all derive from :class:`HybridError`."""


class HybridError(RuntimeError):
    """The base class of all errors that mxhybrid raises itself."""


class SettingError(HybridError, ValueError):
    """A setting, an environment or a combination cannot work; raised before the job is joined or anything is sent."""


class InputError(HybridError, ValueError):
    """A call cannot accept a key, array or optimizer; raised before anything of the call is sent."""


class JobError(HybridError):
    """The job cannot continue: another process of it failed, ended too early or never joined."""


class RefusedError(HybridError):
    """A message was not sent by a process of this job, or was sent before."""


class CheckpointError(HybridError):
    """A checkpoint cannot be written, cannot be read, or does not fit the model; raised on all workers."""
