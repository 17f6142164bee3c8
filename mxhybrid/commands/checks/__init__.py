"""What ``mxhybrid doctor`` looks at, a file a subject."""
