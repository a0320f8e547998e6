//! Names: of types, which are unique in a crate, and of words that were given up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::Item;

use super::finding::{Finding, Rule};
use super::modules::{attributes, is_test_only, modules};
use super::prose::{Passage, comments, paragraphs};
use super::workspace::{Crate, Source, Sources, line};

/// Finds names of several types of a crate. Types of one module with the same name are
/// alternatives, of which a configuration selects one.
pub(super) fn types_twice(krate: &Crate, sources: &Sources) -> Vec<Finding> {
    let mut places: BTreeMap<String, BTreeMap<Vec<String>, (PathBuf, usize)>> = BTreeMap::new();
    for root in &krate.roots {
        let modules = modules(sources, &krate.folder, root);
        for module in modules.iter().filter(|module| !module.is_test) {
            for name in module.items.iter().filter_map(type_name) {
                let place = (module.file.to_path_buf(), line(name.span()));
                let of_name = places.entry(name.to_string()).or_default();
                // Two programs may share a file.
                if !of_name.values().any(|other| *other == place) {
                    of_name.entry(module.path.clone()).or_insert(place);
                }
            }
        }
    }
    let several = places.into_iter().filter(|(_, places)| places.len() > 1);
    several.map(|(name, places)| type_twice(krate, name, places.into_values().collect())).collect()
}

fn type_twice(krate: &Crate, name: String, mut places: Vec<(PathBuf, usize)>) -> Finding {
    places.sort();
    let size = places.len();
    let (file, line) = places.remove(0);
    let others: Vec<String> =
        places.iter().map(|(file, line)| format!("{}:{line}", file.display())).collect();
    Finding {
        file,
        line,
        rule: Rule::TypeTwice,
        krate: krate.key().into(),
        what: format!("`{name}` is the name of {size} types, here and at {}", others.join(", ")),
        subject: name,
        size,
        remedy: "give each its own name, or make them one".into(),
    }
}

/// Returns the name of a type that an item defines, except in tests.
fn type_name(item: &Item) -> Option<&Ident> {
    let name = match item {
        Item::Enum(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    (!is_test_only(attributes(item))).then_some(name)
}

/// Words that some crates gave up.
#[derive(Debug)]
pub(super) struct Vocabulary {
    /// Folders of the crates; empty for all crates.
    pub(super) crates: &'static [&'static str],
    pub(super) words: &'static [GivenUp],
}

/// Word that was given up.
#[derive(Debug)]
pub(super) struct GivenUp {
    /// A word with a capital letter is a whole name: `Crew`. One in small letters is a part of
    /// names: `see_out` is in `see_out_all` and in `SeeOut`.
    word: &'static str,
    /// Word to use instead.
    instead: &'static str,
    is_for_prose: bool,
}

/// Makes an entry for the names of files, types, functions and variables.
pub(super) const fn word(word: &'static str, instead: &'static str) -> GivenUp {
    GivenUp { word, instead, is_for_prose: false }
}

impl GivenUp {
    /// Extends the entry to comments and Markdown, where `see_out` is also `see out`.
    pub(super) const fn in_prose(self) -> GivenUp {
        GivenUp { is_for_prose: true, ..self }
    }

    fn is_name(&self) -> bool {
        self.word.contains(char::is_uppercase)
    }

    /// Returns whether the word is in a name, which consists of `words`.
    fn is_in(&self, name: &str, words: &[String]) -> bool {
        if self.is_name() {
            return name == self.word;
        }
        let wanted: Vec<&str> = self.word.split('_').collect();
        words.windows(wanted.len()).any(|window| window == wanted)
    }

    /// Returns the first line of a passage that has the word; `split` is the passage in single words.
    fn line_in(&self, passage: &Passage, split: &Passage) -> Option<usize> {
        if self.is_name() {
            return passage.iter().find(|(name, _)| name == self.word).map(|(_, line)| *line);
        }
        let wanted: Vec<&str> = self.word.split('_').collect();
        let is_here = |window: &&[(String, usize)]| window.iter().map(|(word, _)| word).eq(&wanted);
        split.windows(wanted.len()).find(is_here).map(|window| window[0].1)
    }
}

/// Lists the words that the crate in the folder `krate` gave up.
fn list_for<'a>(
    krate: &'a str,
    list: &'a [Vocabulary],
) -> impl Iterator<Item = &'a GivenUp> + use<'a> {
    let is_meant = move |vocabulary: &&Vocabulary| {
        vocabulary.crates.is_empty() || vocabulary.crates.contains(&krate)
    };
    list.iter().filter(is_meant).flat_map(|vocabulary| vocabulary.words)
}

/// Splits a name into its words: `SeeOut`, `see_out` and `SEE_OUT` have the same.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = '_';
    for c in name.chars() {
        let begins = before == '_' || before == '-' || (c.is_uppercase() && before.is_lowercase());
        before = c;
        match words.last_mut() {
            _ if c == '_' || c == '-' => {}
            Some(word) if !begins => word.extend(c.to_lowercase()),
            _ => words.push(c.to_lowercase().collect()),
        }
    }
    words
}

/// Finds words that were given up in the path of a file, in its identifiers and in its comments.
pub(super) fn given_up(
    krate: &str,
    file: &Path,
    source: &Source,
    list: &[Vocabulary],
) -> Vec<Finding> {
    let list: Vec<&GivenUp> = list_for(krate, list).collect();
    if list.is_empty() {
        return Vec::new();
    }
    let mut names: Vec<(String, usize)> = Vec::new();
    let inside = file.strip_prefix(krate).unwrap_or(file).with_extension("");
    names.extend(inside.iter().map(|part| (part.to_string_lossy().into_owned(), 1)));
    identifiers(source.tokens.clone(), &mut names);
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (name, line) in names {
        if !seen.insert(name.clone()) {
            continue;
        }
        let words = words(&name);
        if let Some(given_up) = list.iter().find(|given_up| given_up.is_in(&name, &words)) {
            let what = format!("`{name}` has the word `{}`, which was given up", given_up.word);
            found.push(finding(krate, file, line, given_up, name, what));
        }
    }
    let in_prose: Vec<&GivenUp> = list.into_iter().filter(|entry| entry.is_for_prose).collect();
    if !in_prose.is_empty() {
        found.extend(given_up_in_prose(krate, file, &comments(source), &in_prose));
    }
    found
}

/// Finds words that were given up in a page of Markdown. A page outside all crates is checked for
/// the words of all crates.
pub(super) fn given_up_in_page(
    krate: &str,
    file: &Path,
    page: &str,
    list: &[Vocabulary],
) -> Vec<Finding> {
    let all = || list.iter().flat_map(|vocabulary| vocabulary.words).collect();
    let list: Vec<&GivenUp> =
        if krate.is_empty() { all() } else { list_for(krate, list).collect() };
    let in_prose: Vec<&GivenUp> = list.into_iter().filter(|entry| entry.is_for_prose).collect();
    given_up_in_prose(krate, file, &paragraphs(page), &in_prose)
}

fn given_up_in_prose(
    krate: &str,
    file: &Path,
    passages: &[Passage],
    list: &[&GivenUp],
) -> Vec<Finding> {
    let in_passage = |passage: &Passage| {
        let split = passage.iter();
        let split = split.flat_map(|(name, line)| words(name).into_iter().map(|w| (w, *line)));
        let split: Passage = split.collect();
        let found = list.iter().filter_map(|entry| Some((*entry, entry.line_in(passage, &split)?)));
        found.collect::<Vec<_>>()
    };
    let found = passages.iter().flat_map(in_passage);
    found
        .map(|(entry, line)| {
            let what = format!("the text has the word `{}`, which was given up", entry.word);
            finding(krate, file, line, entry, entry.word.into(), what)
        })
        .collect()
}

fn finding(
    krate: &str,
    file: &Path,
    line: usize,
    given_up: &GivenUp,
    subject: String,
    what: String,
) -> Finding {
    Finding {
        file: file.into(),
        line,
        rule: Rule::GivenUp,
        krate: krate.into(),
        subject,
        size: 1,
        what,
        remedy: format!("call it {}", given_up.instead),
    }
}

fn identifiers(tokens: TokenStream, found: &mut Vec<(String, usize)>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => identifiers(group.stream(), found),
            TokenTree::Ident(name) => found.push((name.to_string(), line(name.span()))),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_any_spelling_and_only_whole() {
        let see_out = word("see_out", "run_to_completion");
        for (name, expected) in [
            ("see_out", true),
            ("SeeOut", true),
            ("SEE_OUT", true),
            ("to_see_out_all", true),
            ("see_output", false),
            ("oversee_out", false),
            ("see", false),
        ] {
            assert_eq!(see_out.is_in(name, &words(name)), expected, "{name}");
        }
        let crew = word("Crew", "Nodes");
        let is_crew = |name| crew.is_in(name, &words(name));
        assert!(is_crew("Crew") && !is_crew("crew") && !is_crew("CrewMember"));
    }
}
