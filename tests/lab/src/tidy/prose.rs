//! Text for people: comments of Rust files, and paragraphs of Markdown.

use std::ops::Range;

use proc_macro2::{TokenStream, TokenTree};

use super::workspace::Source;

/// Comment or paragraph: its words as they are written, each with its line.
pub(super) type Passage = Vec<(String, usize)>;

/// Lists the comments of a file. Adjacent lines are one comment.
pub(super) fn comments(source: &Source) -> Vec<Passage> {
    let text = &*source.text;
    let mut literals = Vec::new();
    collect_literals(text, source.tokens.clone(), &mut literals);
    let mut literals = literals.into_iter().peekable();
    let mut found: Vec<Passage> = Vec::new();
    let (mut at, mut line, mut may_continue) = (0, 1, false);
    while at < text.len() {
        let after = &text[at..];
        if let Some(literal) = literals.next_if(|literal| literal.start <= at) {
            line += text[at..literal.end].matches('\n').count();
            (at, may_continue) = (literal.end, false);
        } else if after.starts_with("//") || after.starts_with("/*") {
            let comment = &after[..comment_length(after)];
            let passage = passage(comment, line);
            match found.last_mut() {
                Some(last) if may_continue => last.extend(passage),
                _ => found.push(passage),
            }
            line += comment.matches('\n').count();
            at += comment.len();
            may_continue = comment.starts_with("//");
        } else {
            let c = after.chars().next().unwrap_or_default();
            line += usize::from(c == '\n');
            may_continue &= c.is_whitespace();
            at += c.len_utf8();
        }
    }
    found
}

/// Collects the byte ranges of literals, in order. A doc comment also contains a literal for the
/// compiler, but does not count.
fn collect_literals(text: &str, tokens: TokenStream, found: &mut Vec<Range<usize>>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_literals(text, group.stream(), found),
            TokenTree::Literal(literal) => {
                let range = literal.span().byte_range();
                if text.get(range.clone()).is_some_and(|literal| !literal.starts_with('/')) {
                    found.push(range);
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Returns the length in bytes of the comment at the beginning of `text`.
fn comment_length(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let after = &text.as_bytes()[at..];
        if after.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if after.starts_with(b"*/") {
            depth -= 1;
            at += 2;
        } else {
            at += 1;
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Lists the paragraphs of a page, which blank lines separate.
pub(super) fn paragraphs(page: &str) -> Vec<Passage> {
    let mut found: Vec<Passage> = vec![Vec::new()];
    for (line, text) in (1..).zip(page.lines()) {
        match found.last_mut() {
            Some(last) if !text.trim().is_empty() => last.extend(passage(text, line)),
            _ => found.push(Vec::new()),
        }
    }
    found.retain(|passage| !passage.is_empty());
    found
}

/// Splits text into words; `first` is its first line.
pub(super) fn passage(text: &str, first: usize) -> Passage {
    let words_of = |(line, text): (usize, &str)| {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let words = words.filter(|word| !word.is_empty());
        words.map(|word| (word.to_owned(), line)).collect::<Vec<_>>()
    };
    (first..).zip(text.lines()).flat_map(words_of).collect()
}
