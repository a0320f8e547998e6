//! Edges between the top-level modules of a crate: which top-level module uses which.
//!
//! The root itself is a top-level module, named as its file: `main` or `lib`. What the root
//! re-exports counts as the top-level module that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemUse, Macro, Meta, Visibility};

use super::modules::{Module, attributes, is_test_only, modules};
use super::resolve::{Names, leaves};
use super::workspace::{Crate, Sources, line};

/// Place at which a top-level module uses another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) file: PathBuf,
    pub(super) line: usize,
    /// Path as it is written.
    pub(super) path: String,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Edge { from, to, file, line, path } = self;
        write!(f, "{}:{line}: {from} → {to} by `{path}`", file.display())
    }
}

/// Rooms of a crate without its tests, and the edges between them.
#[derive(Debug, Default)]
pub(super) struct RoomGraph {
    /// Names of top-level modules, and one file of each.
    pub(super) rooms: BTreeMap<String, PathBuf>,
    /// Names of top-level modules that are roots.
    pub(super) roots: BTreeSet<String>,
    pub(super) edges: BTreeSet<Edge>,
}

/// Finds the top-level modules of a crate and the edges between them.
pub(super) fn room_graph(krate: &Crate, sources: &Sources) -> RoomGraph {
    let mut graph = RoomGraph::default();
    for root in &krate.roots {
        let name = root.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let modules = modules(sources, &krate.folder, root);
        let modules: Vec<Module<'_>> = modules.into_iter().filter(|m| !m.is_test).collect();
        let names = Names::new(name.clone(), &modules);
        for module in &modules {
            let room = module.path.first().unwrap_or(&name).clone();
            graph.rooms.entry(room.clone()).or_insert_with(|| module.file.to_path_buf());
            let mut visitor = EdgeVisitor { names: &names, module, room, found: &mut graph.edges };
            module.items.iter().for_each(|item| visitor.visit_item(item));
        }
        graph.roots.insert(name);
    }
    graph
}

/// Visitor of the items of one module.
struct EdgeVisitor<'a> {
    names: &'a Names,
    module: &'a Module<'a>,
    room: String,
    found: &'a mut BTreeSet<Edge>,
}

impl EdgeVisitor<'_> {
    fn note(&mut self, path: &[String], line: usize) {
        let Some(to) = self.names.room(&self.module.path, path) else { return };
        if to != self.room {
            let (from, file) = (self.room.clone(), self.module.file.to_path_buf());
            self.found.insert(Edge { from, to, file, line, path: path.join("::") });
        }
    }

    /// Looks for paths in the arguments of a macro, which may not be Rust.
    fn scan(&mut self, tokens: TokenStream, is_attribute: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.scan(group.stream(), is_attribute),
                TokenTree::Literal(literal) if is_attribute => self.quoted(literal),
                TokenTree::Ident(first) if !follows_path(&tokens[..at]) => {
                    let mut path = vec![first.to_string()];
                    while let Some(next) = next_segment(&tokens[at + 1..]) {
                        path.push(next);
                        at += 3;
                    }
                    if path.len() > 1 {
                        self.note(&path, line(first.span()));
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads a path in a string literal, as attributes of serde have.
    fn quoted(&mut self, literal: &proc_macro2::Literal) {
        let text = literal.to_string();
        let path: Vec<String> = text.trim_matches('"').split("::").map(str::to_owned).collect();
        if path.len() > 1 && ["crate", "super"].contains(&path[0].as_str()) {
            self.note(&path, line(literal.span()));
        }
    }
}

/// Returns whether a name after these tokens continues a path.
fn follows_path(before: &[TokenTree]) -> bool {
    let is = |token: &TokenTree, wanted: char| matches!(token, TokenTree::Punct(mark) if mark.as_char() == wanted);
    match before {
        [.., last] if is(last, '.') => true,
        [.., one, two] => is(one, ':') && is(two, ':'),
        _ => false,
    }
}

/// Reads `::name` at the beginning of tokens.
fn next_segment(tokens: &[TokenTree]) -> Option<String> {
    match tokens {
        [TokenTree::Punct(one), TokenTree::Punct(two), TokenTree::Ident(name), ..]
            if one.as_char() == ':' && two.as_char() == ':' =>
        {
            Some(name.to_string())
        }
        _ => None,
    }
}

impl<'ast> Visit<'ast> for EdgeVisitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        // Each module is visited by itself.
        if !matches!(item, Item::Mod(_)) && !is_test_only(attributes(item)) {
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

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_of_root = self.module.path.is_empty();
        let is_re_export = is_of_root && !matches!(item.vis, Visibility::Inherited);
        if item.leading_colon.is_none() && !is_re_export {
            leaves(&item.tree).iter().for_each(|leaf| self.note(&leaf.path, leaf.line));
        }
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        // A single lower-case name may be a variable.
        let is_plain = names.len() == 1 && !names[0].starts_with(char::is_uppercase);
        if path.leading_colon.is_none() && !is_plain {
            self.note(&names, line(path.segments[0].ident.span()));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.scan(call.tokens.clone(), false);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.scan(list.tokens.clone(), true);
        }
    }
}

/// Groups edges by the two top-level modules that they join.
pub(super) fn group_by_rooms(edges: &BTreeSet<Edge>) -> BTreeMap<(&str, &str), Vec<&Edge>> {
    let mut pairs: BTreeMap<(&str, &str), Vec<&Edge>> = BTreeMap::new();
    for edge in edges {
        pairs.entry((&edge.from, &edge.to)).or_default().push(edge);
    }
    pairs
}
