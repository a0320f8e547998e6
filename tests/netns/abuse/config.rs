//! Configuration, command lines and records: what a stranger wrote runs nothing, and secrets stay here.
