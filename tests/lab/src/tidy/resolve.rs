//! Resolution of paths to top-level modules.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, UseTree};

use super::modules::Module;
use super::workspace::line;

/// Names in the root of a crate, by which top-level modules refer to each other.
#[derive(Debug, Default)]
pub(super) struct Names {
    root: String,
    /// Modules directly below the root, each with the names that it defines.
    rooms: BTreeMap<String, BTreeSet<String>>,
    /// Names that the root imports or re-exports, with their paths.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths from which the root imports everything.
    globs: Vec<Vec<String>>,
    /// Modules of the root that are files of another crate, or tests.
    borrowed: BTreeSet<String>,
    /// Macros with the top-level modules that define them. They are reached by paths from the root.
    macros: BTreeMap<String, String>,
}

impl Names {
    /// Reads the names of a crate's modules. The top-level module of the root is called `root`.
    pub(super) fn new(root: String, modules: &[Module<'_>]) -> Names {
        let mut names = Names { root, ..Names::default() };
        for module in modules {
            let room = module.path.first().unwrap_or(&names.root).clone();
            let macros = module.items.iter().filter_map(|item| match item {
                Item::Macro(defined) => defined.ident.as_ref(),
                _ => None,
            });
            names.macros.extend(macros.map(|name| (name.to_string(), room.clone())));
            if module.path.len() == 1 {
                names.rooms.insert(room, defined(module.items));
            }
        }
        let root = modules.iter().filter(|module| module.path.is_empty());
        root.flat_map(|module| module.items).for_each(|item| names.read_root(item));
        names
    }

    fn read_root(&mut self, item: &Item) {
        match item {
            Item::Mod(child) if !self.rooms.contains_key(&child.ident.to_string()) => {
                self.borrowed.insert(child.ident.to_string());
            }
            Item::Use(import) if import.leading_colon.is_none() => {
                for leaf in leaves(&import.tree) {
                    if leaf.is_glob {
                        self.globs.push(leaf.path);
                    } else {
                        self.imports.insert(leaf.name, leaf.path);
                    }
                }
            }
            _ => {}
        }
    }

    /// Finds the top-level module that a path in a module leads to, if it leads into this crate.
    pub(super) fn room(&self, module: &[String], path: &[String]) -> Option<String> {
        let mut here = module;
        let mut rest = path;
        let mut is_anchored = false;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => here = &[],
                "self" => {}
                "super" => here = here.split_last()?.1,
                _ => break,
            }
            (is_anchored, rest) = (true, after);
        }
        if !is_anchored && !here.is_empty() {
            // The path begins with a crate, an import, or a module of this top-level module.
            return None;
        }
        match (here.first(), rest.first()) {
            (Some(room), _) => Some(room.clone()),
            (None, Some(name)) => self.of_root(name, is_anchored),
            (None, None) => Some(self.root.clone()),
        }
    }

    /// Finds the top-level module of a name in the root.
    fn of_root(&self, name: &str, is_anchored: bool) -> Option<String> {
        if self.rooms.contains_key(name) {
            return Some(name.to_owned());
        }
        if self.borrowed.contains(name) {
            return None;
        }
        if let Some(path) = self.imports.get(name) {
            return self.imported(path);
        }
        if !is_anchored {
            return None;
        }
        let of_glob = |path: &Vec<String>| {
            let room = self.imported(path)?;
            self.rooms.get(&room)?.contains(name).then_some(room)
        };
        let found = self.globs.iter().find_map(of_glob);
        found.or_else(|| self.macros.get(name).cloned()).or_else(|| Some(self.root.clone()))
    }

    /// Finds the top-level module that the root imports a path from, unless it is in another crate.
    /// Imports are not followed further: `use anyhow::anyhow` would lead to itself.
    fn imported(&self, path: &[String]) -> Option<String> {
        let (is_anchored, path) = match path.split_first() {
            Some((first, rest)) if first == "crate" || first == "self" => (true, rest),
            _ => (false, path),
        };
        let first = path.first()?;
        if self.rooms.contains_key(first) {
            return Some(first.clone());
        }
        // Macros are imported by their name alone.
        let room = self.macros.get(first).filter(|_| path.len() == 1);
        let is_root = is_anchored && !self.borrowed.contains(first);
        room.cloned().or_else(|| is_root.then(|| self.root.clone()))
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
pub(super) struct Leaf {
    pub(super) path: Vec<String>,
    /// Name under which it is imported.
    name: String,
    pub(super) line: usize,
    is_glob: bool,
}

/// Lists the names of a `use`.
pub(super) fn leaves(tree: &UseTree) -> Vec<Leaf> {
    let mut found = Vec::new();
    collect(tree, &mut Vec::new(), &mut found);
    found
}

fn collect(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Leaf>) {
    let mut leaf = |before: &[String], last: &syn::Ident, name: &syn::Ident| {
        let mut path = before.to_vec();
        path.push(last.to_string());
        // `use a::{self}` means `use a`.
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
