//! Connections of strangers to what listens during a job, and output without an end.
