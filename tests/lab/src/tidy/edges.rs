//! Edges between the rooms of a crate: which part of it uses which.
//!
//! A room is a module directly below the root: `x.rs` and `x/` together. The root itself is a room
//! that is called as its file is, `main` or `lib`. What it re-exports is the room's that has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemUse, Macro, Meta, UseTree, Visibility};

use super::modules::{Module, attributes, is_test_only, modules};
use super::workspace::{Crate, Sources, line};

/// One place at which a room uses another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) file: PathBuf,
    pub(super) line: usize,
    /// What is written there.
    pub(super) path: String,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Edge { from, to, file, line, path } = self;
        write!(f, "{}:{line}: {from} → {to} by `{path}`", file.display())
    }
}

/// The rooms of a crate without its tests, and the edges between them.
#[derive(Debug, Default)]
pub(super) struct FloorPlan {
    /// Rooms, and a file of each.
    pub(super) rooms: BTreeMap<String, PathBuf>,
    /// Names of rooms that are roots.
    pub(super) roots: BTreeSet<String>,
    pub(super) edges: BTreeSet<Edge>,
}

/// Reads the floor plan of a crate.
pub(super) fn floor_plan(krate: &Crate, sources: &Sources) -> FloorPlan {
    let mut plan = FloorPlan::default();
    for root in &krate.roots {
        let name = root.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let modules = modules(sources, &krate.folder, root);
        let modules: Vec<Module<'_>> = modules.into_iter().filter(|m| !m.is_test).collect();
        let names = Names::new(name.clone(), &modules);
        for module in &modules {
            let room = module.path.first().unwrap_or(&name).clone();
            plan.rooms.entry(room.clone()).or_insert_with(|| module.file.to_path_buf());
            let mut visitor = EdgeVisitor { names: &names, module, room, found: &mut plan.edges };
            module.items.iter().for_each(|item| visitor.visit_item(item));
        }
        plan.roots.insert(name);
    }
    plan
}

/// Names that stand in the root, by which rooms reach each other.
#[derive(Debug)]
struct Names {
    root: String,
    /// Modules directly below the root, and what each defines itself.
    rooms: BTreeMap<String, BTreeSet<String>>,
    /// Names that the root imports or re-exports, and their paths.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths of which it imports all.
    globs: Vec<Vec<String>>,
    /// Modules of the root that are files of another crate.
    borrowed: BTreeSet<String>,
    /// Macros, which are the root's wherever they are, and their rooms.
    macros: BTreeMap<String, String>,
}

impl Names {
    fn new(root: String, modules: &[Module<'_>]) -> Names {
        let mut names = Names {
            root,
            rooms: BTreeMap::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            borrowed: BTreeSet::new(),
            macros: BTreeMap::new(),
        };
        for module in modules {
            let room = module.path.first().unwrap_or(&names.root).clone();
            let macros = module.items.iter().filter_map(|item| match item {
                Item::Macro(defined) => defined.ident.as_ref(),
                _ => None,
            });
            names.macros.extend(macros.map(|name| (name.to_string(), room.clone())));
            match module.path.len() {
                0 => names.read_root(module.items, modules),
                1 => drop(names.rooms.insert(room, defined(module.items))),
                _ => {}
            }
        }
        names
    }

    fn read_root(&mut self, items: &[Item], modules: &[Module<'_>]) {
        for item in items {
            if let Item::Mod(child) = item
                && !modules.iter().any(|module| {
                    module.path.last().is_some_and(|l| child.ident == l) && module.path.len() == 1
                })
            {
                self.borrowed.insert(child.ident.to_string());
            }
            let Item::Use(import) = item else { continue };
            if import.leading_colon.is_some() {
                continue;
            }
            for leaf in leaves(&import.tree) {
                if leaf.is_glob {
                    self.globs.push(leaf.path);
                } else {
                    self.imports.insert(leaf.name, leaf.path);
                }
            }
        }
    }

    /// Finds the room that a path leads to from a module, if it leads into this crate.
    fn room(&self, module: &[String], path: &[String]) -> Option<String> {
        let mut here = module;
        let mut rest = path;
        let mut is_relative = false;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => here = &[],
                "self" => {}
                "super" => here = here.split_last()?.1,
                _ => break,
            }
            (is_relative, rest) = (true, after);
        }
        if !is_relative && !here.is_empty() {
            // A crate, something imported, or a module of this room.
            return None;
        }
        match (here.first(), rest.first()) {
            (Some(room), _) => Some(room.clone()),
            (None, Some(name)) => self.of_root(name, is_relative),
            (None, None) => Some(self.root.clone()),
        }
    }

    /// Finds the room of a name in the root.
    fn of_root(&self, name: &str, is_relative: bool) -> Option<String> {
        if self.rooms.contains_key(name) {
            return Some(name.to_owned());
        }
        if self.borrowed.contains(name) {
            return None;
        }
        if let Some(path) = self.imports.get(name) {
            let path = match path.split_first() {
                Some((first, rest)) if first == "crate" || first == "self" => rest,
                _ => path,
            };
            // A macro of another room is imported by its own name.
            if path != [name] {
                return self.room(&[], path);
            }
        }
        if !is_relative {
            return None;
        }
        let of_glob = |path: &Vec<String>| {
            let room = self.room(&[], path)?;
            self.rooms.get(&room)?.contains(name).then_some(room)
        };
        let found = self.globs.iter().find_map(of_glob);
        found.or_else(|| self.macros.get(name).cloned()).or_else(|| Some(self.root.clone()))
    }
}

/// Lists the names that items define or re-export.
fn defined(items: &[Item]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for item in items {
        match item {
            Item::Const(item) => drop(names.insert(item.ident.to_string())),
            Item::Enum(item) => drop(names.insert(item.ident.to_string())),
            Item::Fn(item) => drop(names.insert(item.sig.ident.to_string())),
            Item::Mod(item) => drop(names.insert(item.ident.to_string())),
            Item::Static(item) => drop(names.insert(item.ident.to_string())),
            Item::Struct(item) => drop(names.insert(item.ident.to_string())),
            Item::Trait(item) => drop(names.insert(item.ident.to_string())),
            Item::Type(item) => drop(names.insert(item.ident.to_string())),
            Item::Union(item) => drop(names.insert(item.ident.to_string())),
            Item::Use(item) => names.extend(leaves(&item.tree).into_iter().map(|leaf| leaf.name)),
            _ => {}
        }
    }
    names
}

/// One name of a `use`.
struct Leaf {
    path: Vec<String>,
    /// What it is called here.
    name: String,
    line: usize,
    is_glob: bool,
}

/// Lists the names of a `use`.
fn leaves(tree: &UseTree) -> Vec<Leaf> {
    let mut found = Vec::new();
    collect(tree, &mut Vec::new(), &mut found);
    found
}

fn collect(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Leaf>) {
    let mut leaf = |before: &[String], last: &syn::Ident, name: &syn::Ident| {
        let mut path = before.to_vec();
        path.push(last.to_string());
        // `use a::{self}` is `use a`.
        if last == "self" && path.len() > 1 {
            path.pop();
        }
        let name = if name == "self" { path.last().cloned() } else { Some(name.to_string()) };
        let (name, line) = (name.unwrap_or_default(), line(last.span()));
        found.push(Leaf { path, name, line, is_glob: false });
    };
    match tree {
        UseTree::Name(name) => leaf(before, &name.ident, &name.ident),
        UseTree::Rename(rename) => leaf(before, &rename.ident, &rename.rename),
        UseTree::Glob(glob) => {
            let line = line(glob.star_token.spans[0]);
            found.push(Leaf { path: before.clone(), name: "*".into(), line, is_glob: true });
        }
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            collect(&path.tree, before, found);
            before.pop();
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|inner| collect(inner, before, found));
        }
    }
}

/// Walks through the items of one module.
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

    /// Looks for paths in what a macro is given, which need not be Rust.
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

    /// Reads a path in quotation marks, as serde takes them.
    fn quoted(&mut self, literal: &proc_macro2::Literal) {
        let text = literal.to_string();
        let path: Vec<String> = text.trim_matches('"').split("::").map(str::to_owned).collect();
        if path.len() > 1 && ["crate", "super"].contains(&path[0].as_str()) {
            self.note(&path, line(literal.span()));
        }
    }
}

/// Tells whether a name after these tokens is no path's first.
fn follows_path(before: &[TokenTree]) -> bool {
    let is = |token: &TokenTree, wanted: char| matches!(token, TokenTree::Punct(mark) if mark.as_char() == wanted);
    match before {
        [.., last] if is(last, '.') => true,
        [.., one, two] => is(one, ':') && is(two, ':'),
        _ => false,
    }
}

/// Reads `::name` at the beginning.
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
        // Modules are walked through one by one.
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
        // A single name in small letters may be a variable.
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

/// Groups edges by the two rooms that they join.
pub(super) fn by_pair(edges: &BTreeSet<Edge>) -> BTreeMap<(&str, &str), Vec<&Edge>> {
    let mut pairs: BTreeMap<(&str, &str), Vec<&Edge>> = BTreeMap::new();
    for edge in edges {
        pairs.entry((&edge.from, &edge.to)).or_default().push(edge);
    }
    pairs
}
