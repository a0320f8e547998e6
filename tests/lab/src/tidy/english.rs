//! Plain English in doc comments: their beginnings, and vague words.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{AttrStyle, Attribute, Expr, Field, ImplItem, Item, Lit, Meta, Variant};

use super::finding::{Finding, Rule};
use super::modules::{attributes, is_test_only, modules};
use super::prose::passage;
use super::workspace::{Crate, Sources, line};

/// Beginnings of sentence fragments, or of comments that need the one before.
const OPENERS: &[&str] = &["Of", "By", "As", "Who", "Whom", "Whose", "What", "The same"];
/// Words that leave open which rank, agent, peer or user is meant, or which number.
const VAGUE: &[&str] = &["so many", "nobody", "somebody", "whoever", "who"];

/// Finds violations in the doc comments of a crate, except in its tests.
pub(super) fn check(krate: &Crate, sources: &Sources) -> Vec<Finding> {
    let mut comments = Vec::new();
    for file in files(krate, sources) {
        let mut visitor = DocVisitor { file, found: &mut comments };
        visitor.visit_file(&sources[file].syntax);
    }
    let mut found = openings(krate, &comments);
    found.extend(vague_words(krate, &comments));
    // A line counts once for each word.
    found.sort();
    found.dedup();
    for rule in [Rule::DocOpening, Rule::VagueWord] {
        let count = found.iter().filter(|finding| finding.rule == rule).count();
        let of_rule = found.iter_mut().filter(|finding| finding.rule == rule);
        of_rule.for_each(|finding| finding.size = count);
    }
    found
}

fn openings(krate: &Crate, comments: &[DocComment]) -> Vec<Finding> {
    let opener = |comment: &DocComment| {
        let text = comment.text.trim_start();
        let is_here = |opener: &&&str| {
            let rest = text.strip_prefix(**opener);
            rest.is_some_and(|rest| rest.starts_with(char::is_whitespace))
        };
        OPENERS.iter().find(is_here).copied()
    };
    let found = comments.iter().filter_map(|comment| Some((comment, opener(comment)?)));
    found
        .map(|(comment, opener)| {
            let what = format!("the doc comment begins with `{opener}`");
            let remedy = "begin with a noun for a type or value, with a verb for a function";
            finding(krate, (&comment.file, comment.line), Rule::DocOpening, what, remedy)
        })
        .collect()
}

fn vague_words(krate: &Crate, comments: &[DocComment]) -> Vec<Finding> {
    let mut found = Vec::new();
    for comment in comments {
        let words = passage(&comment.text, comment.line);
        for vague in VAGUE {
            let wanted: Vec<&str> = vague.split(' ').collect();
            for window in words.windows(wanted.len()) {
                let here = window.iter().map(|(word, _)| word.to_lowercase());
                if here.eq(wanted.iter().copied()) {
                    let what = format!("the doc comment has `{vague}`");
                    let remedy = "name the rank, agent, peer or user, or give the number";
                    let place = (&*comment.file, window[0].1);
                    found.push(finding(krate, place, Rule::VagueWord, what, remedy));
                }
            }
        }
    }
    found
}

fn finding(
    krate: &Crate,
    (file, line): (&Path, usize),
    rule: Rule,
    what: String,
    remedy: &str,
) -> Finding {
    let (file, krate, remedy) = (file.into(), krate.key().into(), remedy.into());
    Finding { file, line, rule, krate, subject: String::new(), size: 0, what, remedy }
}

/// Lists the files of a crate that are not only compiled into tests.
fn files<'a>(krate: &Crate, sources: &'a Sources) -> BTreeSet<&'a Path> {
    let modules = krate.roots.iter().flat_map(|root| modules(sources, &krate.folder, root));
    modules.filter(|module| !module.is_test).map(|module| module.file).collect()
}

/// Adjacent lines of `///` or of `//!`.
struct DocComment {
    file: PathBuf,
    line: usize,
    text: String,
    is_inner: bool,
    last_line: usize,
}

/// Collects the doc comments of a file, except in its tests.
struct DocVisitor<'a> {
    file: &'a Path,
    found: &'a mut Vec<DocComment>,
}

impl<'ast> Visit<'ast> for DocVisitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test_only(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes: &[Attribute] = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !is_test_only(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast Field) {
        if !is_test_only(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        if !is_test_only(&variant.attrs) {
            visit::visit_variant(self, variant);
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let Some(text) = doc_text(attribute) else { return };
        let line = line(attribute.pound_token.span);
        let is_inner = matches!(attribute.style, AttrStyle::Inner(_));
        let last_line = line + text.matches('\n').count();
        match self.found.last_mut() {
            Some(last)
                if last.file == self.file
                    && last.is_inner == is_inner
                    && last.last_line + 1 == line =>
            {
                last.text += "\n";
                last.text += &text;
                last.last_line = last_line;
            }
            _ => {
                let file = self.file.into();
                self.found.push(DocComment { file, line, text, is_inner, last_line });
            }
        }
    }
}

fn doc_text(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(doc) = &attribute.meta else { return None };
    let Expr::Lit(literal) = &doc.value else { return None };
    match &literal.lit {
        Lit::Str(text) if doc.path.is_ident("doc") => Some(text.value()),
        _ => None,
    }
}
