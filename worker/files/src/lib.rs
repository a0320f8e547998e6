//! Files of copies on a host, for the program that copies and for the agent, which patches a copy of a working tree.
//!
//! | module | contents |
//! |---|---|
//! | [`beneath`] | opening files below a directory without following links |
//! | [`meta`] | what the file system says about a file |
//! | [`disk`] | changes below a directory, and where tests intervene |
//! | [`sealing`] | the seal of a copy of a working tree, as a file |
//! | [`patching`] | such a copy of one version becomes that of another |

pub mod beneath;
pub mod disk;
pub mod meta;
pub mod patching;
pub mod sealing;
