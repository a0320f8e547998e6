//! Files, functions and pages that are too long.

use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, ItemImpl, ItemTrait, Signature, TraitItemFn, Type};

use super::finding::{Finding, Rule};
use super::workspace::{Source, line};

/// Maximum number of lines of a file.
const FILE_LINES: usize = 600;
/// Maximum number of lines of a function: what fits on a screen.
const FUNCTION_LINES: usize = 70;

/// Finds long functions of a file, and whether it is too long itself.
pub(super) fn check(krate: &str, file: &Path, source: &Source) -> Vec<Finding> {
    let mut visitor = LengthVisitor { krate, file, owners: Vec::new(), found: Vec::new() };
    visitor.visit_file(&source.syntax);
    let mut found = visitor.found;
    let lines = source.text.lines().count();
    if lines > FILE_LINES {
        found.push(Finding {
            file: file.into(),
            line: FILE_LINES + 1,
            rule: Rule::LongFile,
            krate: krate.into(),
            subject: file.display().to_string(),
            size: lines,
            what: format!("the file has {lines} lines, of {FILE_LINES} at most"),
            remedy: "make two modules of it".into(),
        });
    }
    found
}

struct LengthVisitor<'a> {
    krate: &'a str,
    file: &'a Path,
    /// Types and traits around the current function.
    owners: Vec<String>,
    found: Vec<Finding>,
}

impl LengthVisitor<'_> {
    fn function(&mut self, signature: &Signature, block: &Block) {
        let first = line(signature.fn_token.span);
        let lines = line(block.brace_token.span.close()) + 1 - first;
        if lines <= FUNCTION_LINES {
            return;
        }
        let name = signature.ident.to_string();
        let subject = match self.owners.last() {
            Some(owner) => format!("{owner}::{name}"),
            None => name,
        };
        self.found.push(Finding {
            file: self.file.into(),
            line: first,
            rule: Rule::LongFunction,
            krate: self.krate.into(),
            size: lines,
            what: format!("`{subject}` has {lines} lines, of {FUNCTION_LINES} at most"),
            subject,
            remedy: "make its parts functions of their own".into(),
        });
    }
}

impl<'ast> Visit<'ast> for LengthVisitor<'_> {
    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let name = match &*item.self_ty {
            Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.owners.push(name.unwrap_or_else(|| "impl".into()));
        visit::visit_item_impl(self, item);
        self.owners.pop();
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.owners.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.owners.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Page of text with a maximum length.
#[derive(Debug)]
pub(super) struct Page {
    /// Path from the workspace.
    pub(super) file: &'static str,
    pub(super) bytes: usize,
}

impl Page {
    /// Returns a finding if the page exists and is too long.
    pub(super) fn check(&self, workspace: &Path) -> Option<Finding> {
        let size = fs::read(workspace.join(self.file)).ok()?.len();
        if size <= self.bytes {
            return None;
        }
        Some(Finding {
            file: self.file.into(),
            line: 1,
            rule: Rule::LongPage,
            krate: String::new(),
            subject: self.file.into(),
            size,
            what: format!("the page has {size} bytes, of {} at most", self.bytes),
            remedy: "move details to where their reader looks".into(),
        })
    }
}
