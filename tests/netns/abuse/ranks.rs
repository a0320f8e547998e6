//! Ranks that interrupt, fork or leave in the midst of messages.
