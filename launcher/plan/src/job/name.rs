//! Names of jobs, and the one way in which a word of the user means a job.
//!
//! A job has a name of two words from its first attempt on, unless `--job-name` gives it another; restarts keep it. Names
//! are for people: they are drawn, so two jobs may have the same, and then the newest is meant.
//!
//! A job that a verb of rlaunch starts for itself is named after the verb, as `rlaunch-bench`, and is never `last`.

use std::fmt;
use std::str::FromStr;

/// Maximum length of a name, in characters.
const MAX_LENGTH: usize = 40;
/// Word for the newest job that the user has started.
pub const LAST: &str = "last";
/// Beginning of the name of a job that a verb has started.
const OF_VERB: &str = "rlaunch-";

/// Name of a job: letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobName(String);

/// Text that cannot name a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobNameError {
    #[error("letters, digits, - and _, 40 at most, with a letter or digit first")]
    Form,
    #[error("another name: `last` is the newest job")]
    Last,
    #[error("another name: {begin}… are jobs that rlaunch starts itself, as by `rlaunch bench`", begin = OF_VERB)]
    OfVerb,
}

/// Returns the verb that has started the job of this name; `None` for a job of the user.
pub fn verb_of(name: &str) -> Option<&str> {
    name.strip_prefix(OF_VERB)
}

impl JobName {
    /// Makes a name of two words from random bits.
    pub fn from_bits(bits: u16) -> JobName {
        let word = |words: &[&'static str], bits: u16| words[usize::from(bits) % words.len()];
        JobName(format!("{}-{}", word(&FIRST, bits), word(&SECOND, bits >> 7)))
    }

    /// Makes the name of a job that a verb starts.
    pub fn of_verb(verb: &'static str) -> JobName {
        JobName(format!("{OF_VERB}{verb}"))
    }

    /// Parses a name that the user gives to a job.
    pub fn parse_given(text: &str) -> Result<JobName, JobNameError> {
        match verb_of(text) {
            Some(_) => Err(JobNameError::OfVerb),
            None => text.parse(),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for JobName {
    type Err = JobNameError;

    fn from_str(text: &str) -> Result<JobName, JobNameError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins || text.len() > MAX_LENGTH || !text.bytes().all(is_plain) {
            return Err(JobNameError::Form);
        }
        if text == LAST {
            return Err(JobNameError::Last);
        }
        Ok(JobName(text.to_owned()))
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Job that a word may mean.
pub trait NamedJob {
    /// Id of the job, 32 hexadecimal digits.
    fn id(&self) -> &str;
    /// Name of the job; empty if an older rlaunch has started it.
    fn name(&self) -> &str;
}

/// What a word means among several jobs, by their indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meant {
    Nothing,
    One(usize),
    Several(Vec<usize>),
}

impl Meant {
    /// Finds out which of `jobs`, oldest first, `word` means: `last`, a whole id, a whole name, or the beginning of only
    /// one id or name. Of jobs with the same name the newest is meant; `last` is one of the user.
    pub fn find<J: NamedJob>(word: &str, jobs: &[J]) -> Meant {
        let digits = word.to_ascii_lowercase();
        let whole = match word {
            LAST => jobs.iter().rposition(|job| verb_of(job.name()).is_none()),
            _ => jobs
                .iter()
                .rposition(|job| job.id() == digits)
                .or_else(|| jobs.iter().rposition(|job| job.name() == word)),
        };
        if let Some(at) = whole {
            return Meant::One(at);
        }
        let is_newest = |at: usize| jobs[at + 1..].iter().all(|job| job.name() != jobs[at].name());
        let begins = |at: &usize| {
            let job = &jobs[*at];
            job.id().starts_with(&digits) || (job.name().starts_with(word) && is_newest(*at))
        };
        let found: Vec<usize> = (0..jobs.len()).filter(begins).collect();
        match found.as_slice() {
            [] => Meant::Nothing,
            [one] => Meant::One(*one),
            _ => Meant::Several(found),
        }
    }
}

/// First words of names.
const FIRST: [&str; 128] = [
    "agile", "alert", "amber", "azure", "brave", "breezy", "bright", "brisk", "bronze", "calm",
    "candid", "civil", "clear", "clever", "cobalt", "copper", "cosmic", "cozy", "crisp", "crystal",
    "curious", "daring", "deep", "deft", "dewy", "eager", "early", "earnest", "easy", "emerald",
    "epic", "fair", "famous", "fancy", "festive", "fine", "fleet", "fluent", "fond", "free",
    "fresh", "frosty", "gentle", "glad", "golden", "good", "grand", "great", "green", "handy",
    "happy", "hardy", "hazel", "honest", "humble", "icy", "indigo", "jade", "jolly", "jovial",
    "keen", "kind", "lively", "loyal", "lucid", "lucky", "lunar", "magic", "mellow", "merry",
    "mighty", "mild", "mint", "misty", "modest", "neat", "nimble", "noble", "novel", "olive",
    "opal", "open", "patient", "placid", "plucky", "polar", "polite", "proud", "quick", "quiet",
    "rapid", "ready", "regal", "robust", "rosy", "royal", "ruby", "rustic", "sage", "scarlet",
    "serene", "sharp", "shiny", "silent", "silver", "sleek", "smart", "smooth", "snowy", "solar",
    "solid", "spry", "stable", "steady", "stellar", "sturdy", "sunny", "sure", "swift", "tidy",
    "trusty", "velvet", "violet", "vivid", "warm", "wise", "witty", "zesty",
];
/// Second words of names.
const SECOND: [&str; 128] = [
    "acorn", "anchor", "apple", "arrow", "aspen", "aster", "badger", "bamboo", "basil", "beacon",
    "birch", "bison", "breeze", "bridge", "brook", "camel", "canoe", "canyon", "cedar", "cliff",
    "clover", "comet", "coral", "crane", "creek", "cricket", "daisy", "dawn", "delta", "dolphin",
    "dove", "dune", "eagle", "elk", "ember", "falcon", "fern", "field", "finch", "forest", "fox",
    "garden", "gecko", "glacier", "glade", "grove", "gull", "harbor", "hare", "harp", "hawk",
    "heron", "hill", "horizon", "iris", "island", "jaguar", "jasmine", "juniper", "kestrel",
    "kite", "koala", "lagoon", "lake", "lantern", "lark", "laurel", "lemur", "lilac", "lily",
    "lotus", "lynx", "magpie", "mango", "maple", "marble", "marlin", "meadow", "meteor", "moose",
    "narwhal", "nebula", "oak", "oasis", "ocean", "orchid", "oriole", "osprey", "otter", "owl",
    "panda", "peak", "pebble", "pelican", "penguin", "pine", "planet", "pond", "poppy", "prairie",
    "puffin", "quail", "quartz", "rabbit", "raven", "reef", "ridge", "river", "robin", "salmon",
    "shore", "sparrow", "spruce", "star", "stream", "summit", "swan", "tiger", "toucan", "trout",
    "tulip", "turtle", "valley", "walrus", "whale", "willow", "wren", "zebra",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_name_is_two_words_that_are_easy_to_type() {
        let words: HashSet<&str> = FIRST.iter().chain(&SECOND).copied().collect();
        assert_eq!(words.len(), 256);
        for word in words {
            assert!((3..=8).contains(&word.len()), "{word}");
            assert!(word.bytes().all(|byte| byte.is_ascii_lowercase()), "{word}");
        }
        let names: HashSet<String> =
            (0..1 << 14).map(|bits| JobName::from_bits(bits).to_string()).collect();
        assert_eq!(names.len(), 1 << 14);
        assert!(names.iter().all(|name| name.parse::<JobName>().is_ok()));
    }

    #[test]
    fn a_name_is_a_plain_word() {
        for name in ["a", "train_2-b", "0199", &"x".repeat(40)] {
            assert_eq!(name.parse::<JobName>().map(|name| name.to_string()), Ok(name.to_owned()));
        }
        for name in ["", "-a", "_a", "a b", "a/b", "ä", "a.b", &"x".repeat(41)] {
            assert_eq!(name.parse::<JobName>(), Err(JobNameError::Form), "{name}");
        }
        assert_eq!("last".parse::<JobName>(), Err(JobNameError::Last));
    }

    struct Job(String, &'static str);

    impl NamedJob for Job {
        fn id(&self) -> &str {
            &self.0
        }

        fn name(&self) -> &str {
            self.1
        }
    }

    #[test]
    fn one_job_is_meant_by_what_only_it_has() {
        let id = |begin: &str| format!("{begin:0<32}");
        let jobs = [
            Job(id("0199f3a2"), ""),
            Job(id("0199f3b7"), "amber-fox"),
            Job(id("0199f3c1"), "amber-owl"),
            Job(id("0199f3d5"), "amber-fox"),
            Job(id("0199f3e0"), "amber"),
        ];
        for (word, expected) in [
            ("last", Meant::One(4)),
            ("0199F3A", Meant::One(0)),
            (id("0199f3b7").as_str(), Meant::One(1)),
            ("amber-f", Meant::One(3)),
            ("amber-fox", Meant::One(3)),
            ("amber", Meant::One(4)),
            ("amber-", Meant::Several(vec![2, 3])),
            ("0199f3", Meant::Several(vec![0, 1, 2, 3, 4])),
            ("amber-x", Meant::Nothing),
        ] {
            assert_eq!(Meant::find(word, &jobs), expected, "{word}");
        }
        assert_eq!(Meant::find(LAST, &jobs[..0]), Meant::Nothing);
    }

    #[test]
    fn a_job_of_a_verb_is_meant_by_its_name_alone() {
        let bench = JobName::of_verb("bench").to_string();
        assert_eq!(bench.parse::<JobName>().map(|name| name.to_string()), Ok(bench.clone()));
        assert_eq!(JobName::parse_given(&bench), Err(JobNameError::OfVerb));
        assert_eq!(verb_of(&bench), Some("bench"));
        let id = |begin: &str| format!("{begin:0<32}");
        let jobs = [
            Job(id("01"), "amber-fox"),
            Job(id("02"), "rlaunch-bench"),
            Job(id("03"), "rlaunch-push"),
        ];
        assert_eq!(Meant::find(LAST, &jobs), Meant::One(0));
        assert_eq!(Meant::find(LAST, &jobs[1..]), Meant::Nothing);
        assert_eq!(Meant::find("rlaunch-b", &jobs), Meant::One(1));
    }
}
