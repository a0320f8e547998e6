//! Modules of a crate, found from its root file.

use std::path::{Component, Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Item, ItemMod, Lit, Meta, Token};

use super::workspace::Sources;

/// Module: a file, or a block in a file.
pub(super) struct Module<'a> {
    /// Names after `crate::`; empty for the root.
    pub(super) path: Vec<String>,
    pub(super) file: &'a Path,
    pub(super) items: &'a [Item],
    /// Whether it is only compiled into tests.
    pub(super) is_test: bool,
}

/// Lists the modules of the crate that begins at `root`, as far as their files are in `folder`. A
/// file that one crate borrows by `#[path]` counts only in its own crate.
pub(super) fn modules<'a>(sources: &'a Sources, folder: &Path, root: &Path) -> Vec<Module<'a>> {
    let mut walk = Walk { sources, folder, found: Vec::new() };
    let home = root.parent().unwrap_or(Path::new(""));
    walk.file(Vec::new(), root, home, false);
    walk.found
}

struct Walk<'a, 'f> {
    sources: &'a Sources,
    folder: &'f Path,
    found: Vec<Module<'a>>,
}

impl<'a> Walk<'a, '_> {
    /// Adds the module of a file, whose children have their files in `home`.
    fn file(&mut self, path: Vec<String>, file: &Path, home: &Path, is_test: bool) {
        let Some((file, source)) = self.sources.get_key_value(file) else { return };
        if !file.starts_with(self.folder) {
            return;
        }
        let is_test = is_test || is_test_only(&source.syntax.attrs);
        self.items(path, file, &source.syntax.items, home, is_test);
    }

    fn items(
        &mut self,
        path: Vec<String>,
        file: &'a Path,
        items: &'a [Item],
        home: &Path,
        is_test: bool,
    ) {
        for item in items {
            let Item::Mod(child) = item else { continue };
            let mut inside = path.clone();
            inside.push(child.ident.to_string());
            self.child(inside, child, file, home, is_test || is_test_only(&child.attrs));
        }
        self.found.push(Module { path, file, items, is_test });
    }

    fn child(
        &mut self,
        path: Vec<String>,
        child: &'a ItemMod,
        file: &'a Path,
        home: &Path,
        is_test: bool,
    ) {
        let name = child.ident.to_string();
        let given = given_path(&child.attrs);
        if let Some((_, items)) = &child.content {
            let home = normal(&home.join(given.unwrap_or(name)));
            return self.items(path, file, items, &home, is_test);
        }
        if let Some(given) = given {
            // The path is relative to the file's folder, or to `home` inside an inline module.
            let is_inline = home.file_name() != file.file_stem() && home != parent(file);
            let base = if is_inline { home } else { parent(file) };
            let file = normal(&base.join(given));
            return self.file(path, &file, parent(&file), is_test);
        }
        let alone = home.join(format!("{name}.rs"));
        let folder = home.join(&name);
        if self.sources.contains_key(&alone) {
            self.file(path, &alone, &folder, is_test);
        } else {
            self.file(path, &folder.join("mod.rs"), &folder, is_test);
        }
    }
}

fn parent(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

/// Resolves `..` in a path.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

/// Reads `#[path = "…"]`.
fn given_path(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(given) if given.path.is_ident("path") => match &given.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

/// Returns whether an item with these attributes is only compiled into tests.
pub(super) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = attribute.path().segments.last().is_some_and(|last| last.ident == "test");
        let cfg = || attribute.parse_args::<Meta>().is_ok_and(|meta| implies_test(&meta));
        is_test || (attribute.path().is_ident("cfg") && cfg())
    })
}

/// Returns whether a condition can only be true in tests.
fn implies_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            let parts = parts.unwrap_or_default();
            match list.path.get_ident().map(ToString::to_string).as_deref() {
                Some("all") => parts.iter().any(implies_test),
                Some("any") => !parts.is_empty() && parts.iter().all(implies_test),
                _ => false,
            }
        }
        Meta::NameValue(_) => false,
    }
}

/// Returns the attributes of an item.
pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
