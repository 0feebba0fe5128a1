//! Checks that no crate of the workspace has a cycle of modules. If two modules depend on each other, move the code
//! that both use into a third module.
//!
//! The sources are parsed. Modules with the same parent form a graph. There is an edge from one module to another if
//! the first module or its children name something in the second module or in its children. A re-exported name counts
//! as a use of the module that defines it. Uses of a parent by its child are not edges, nor are uses by tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;
use syn::{Attribute, Item, UseTree};

/// Path of a module from its crate's root, which has the empty path.
type ModulePath = Vec<String>;

/// The modules of a crate, and the paths that occur in their code.
#[derive(Default)]
struct Crate {
    modules: BTreeSet<ModulePath>,
    /// Path of each `use`, by module and imported name.
    imports: BTreeMap<(ModulePath, String), Vec<String>>,
    /// Modules of glob imports, by module.
    globs: BTreeMap<ModulePath, Vec<Vec<String>>>,
    named: Vec<(ModulePath, Vec<String>)>,
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut read = Self::default();
        let beside = root.parent().expect("a root has a directory").to_owned();
        read.file(root, &beside, &Vec::new());
        read
    }

    fn file(&mut self, file: &Path, below: &Path, module: &ModulePath) {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.items(&parsed.items, below, module);
    }

    fn items(&mut self, items: &[Item], below: &Path, module: &ModulePath) {
        self.modules.insert(module.clone());
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            match item {
                Item::Mod(child) => {
                    let name = child.ident.to_string();
                    let path = [module.as_slice(), std::slice::from_ref(&name)].concat();
                    match &child.content {
                        Some((_, items)) => self.items(items, &below.join(&name), &path),
                        None => {
                            let inside = below.join(&name);
                            let candidates = [inside.with_extension("rs"), inside.join("mod.rs")];
                            let file = candidates.iter().find(|file| file.exists());
                            let file = file.unwrap_or_else(|| panic!("no file for {path:?}"));
                            self.file(file, &inside, &path);
                        }
                    }
                }
                Item::Use(item) => self.import(&item.tree, &mut Vec::new(), module),
                item => Names { found: self, module }.visit_item(item),
            }
        }
    }

    fn import(&mut self, tree: &UseTree, prefix: &mut Vec<String>, module: &ModulePath) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.import(&path.tree, prefix, module);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, prefix, module)),
            UseTree::Glob(_) => self.globs.entry(module.clone()).or_default().push(prefix.clone()),
            UseTree::Name(name) => self.imported(&name.ident.to_string(), &name.ident.to_string(), prefix, module),
            UseTree::Rename(name) => self.imported(&name.ident.to_string(), &name.rename.to_string(), prefix, module),
        }
    }

    fn imported(&mut self, name: &str, known_as: &str, prefix: &[String], module: &ModulePath) {
        let mut path = prefix.to_vec();
        let known_as = if name == "self" { path.last().cloned().unwrap_or_default() } else { known_as.to_owned() };
        if name != "self" {
            path.push(name.to_owned());
        }
        self.named.push((module.clone(), path.clone()));
        self.imports.insert((module.clone(), known_as), path);
    }

    /// Returns the module that a path refers to when used in the module `from`.
    fn resolve(&self, from: &ModulePath, path: &[String], depth: usize) -> Option<ModulePath> {
        if depth > 16 {
            return None;
        }
        let mut at = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => from.clone(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            first => return self.step(from, first, &path[1..], depth),
        };
        let mut rest = &path[1..];
        while let Some((name, after)) = rest.split_first() {
            if name != "super" {
                return self.step(&at, name, after, depth).or(Some(at));
            }
            at.pop()?;
            rest = after;
        }
        Some(at)
    }

    fn step(&self, at: &ModulePath, name: &str, rest: &[String], depth: usize) -> Option<ModulePath> {
        let child = [at.as_slice(), &[name.to_owned()]].concat();
        if self.modules.contains(&child) {
            return match rest.split_first() {
                Some((name, rest)) => self.step(&child, name, rest, depth).or(Some(child)),
                None => Some(child),
            };
        }
        let import = self.imports.get(&(at.clone(), name.to_owned()))?;
        self.resolve(at, &[import.as_slice(), rest].concat(), depth + 1)
    }

    /// Returns the dependencies between sibling modules, grouped by parent.
    fn edges(&self) -> BTreeMap<ModulePath, BTreeMap<String, BTreeSet<String>>> {
        let mut edges: BTreeMap<ModulePath, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        let globs = self.globs.iter().flat_map(|(module, paths)| paths.iter().map(move |path| (module, path)));
        for (from, path) in self.named.iter().map(|(from, path)| (from, path)).chain(globs) {
            let Some(to) = self.resolve(from, path, 0) else { continue };
            let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if let (Some(one), Some(other)) = (from.get(common), to.get(common)) {
                let siblings = edges.entry(from[..common].to_vec()).or_default();
                siblings.entry(one.clone()).or_default().insert(other.clone());
            }
        }
        edges
    }

    /// Returns a description of each set of modules that depend on each other.
    fn circles(&self) -> Vec<String> {
        let mut circles = Vec::new();
        for (parent, edges) in self.edges() {
            let reach: BTreeMap<_, _> = edges.keys().map(|one| (one, reachable(&edges, one))).collect();
            let mut reported = BTreeSet::new();
            for (one, reached) in &reach {
                if !reached.contains(*one) || !reported.insert((*one).clone()) {
                    continue;
                }
                let others = reached.iter().filter(|other| reach.get(other).is_some_and(|back| back.contains(*one)));
                let circle: Vec<_> = others.cloned().collect();
                reported.extend(circle.iter().cloned());
                let within = |one: &String| {
                    let needs = edges[one].iter().filter(|other| circle.contains(other));
                    format!("{one} needs {}", needs.cloned().collect::<Vec<_>>().join(", "))
                };
                let parent = [&["crate".to_owned()], parent.as_slice()].concat().join("::");
                circles.push(format!("{parent}: {}", circle.iter().map(within).collect::<Vec<_>>().join("; ")));
            }
        }
        circles
    }
}

fn reachable(edges: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<_> = edges.get(from).into_iter().flatten().collect();
    while let Some(one) = next.pop() {
        if reached.insert(one.clone()) {
            next.extend(edges.get(one).into_iter().flatten());
        }
    }
    reached
}

/// Collects the paths in code, including paths in macro arguments.
struct Names<'a> {
    found: &'a mut Crate,
    module: &'a ModulePath,
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.found.import(&item.tree, &mut Vec::new(), self.module);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.found.named.push((self.module.clone(), segments));
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        syn::visit::visit_macro(self, call);
    }
}

impl Names<'_> {
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.end(&mut path);
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.found.named.push((self.module.clone(), path.clone()));
        }
        path.clear();
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("test") || list.is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Finds the root files of all crates, of libraries and programs.
fn roots(directory: &Path, roots: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory of the workspace").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if name == "target" || name.to_string_lossy().starts_with('.') || !path.is_dir() {
            continue;
        }
        let named = ["lib.rs", "main.rs"].map(|root| path.join(root));
        roots.extend(named.into_iter().filter(|root| root.exists()));
        self::roots(&path, roots);
    }
}

fn crates() -> Vec<(String, Crate)> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned();
    let mut found = Vec::new();
    roots(&workspace, &mut found);
    found.sort();
    let name = |root: &PathBuf| root.strip_prefix(&workspace).expect("below it").display().to_string();
    found.iter().map(|root| (name(root), Crate::read(root))).collect()
}

#[test]
fn no_crate_has_a_circle_of_modules() {
    let crates = crates();
    assert!(crates.len() >= 16, "the crates are found: {}", crates.len());
    let circles: Vec<_> = crates
        .iter()
        .flat_map(|(name, read)| read.circles().into_iter().map(move |circle| format!("{name}: {circle}")))
        .collect();
    assert!(circles.is_empty(), "{} circles:\n{}", circles.len(), circles.join("\n"));
}

/// The control: cycles of all kinds are found, and dependencies without a cycle are not reported.
#[test]
fn circles_are_found() {
    let read = |sources: &[(&str, &str)]| {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in sources {
            let file = home.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        Crate::read(&home.path().join("lib.rs")).circles()
    };
    let direct = read(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "pub struct B; fn f(_: super::a::A) {}"),
    ]);
    assert_eq!(direct, ["crate: a needs b; b needs a"]);
    let reexported = read(&[
        ("lib.rs", "mod a; mod b; pub use a::A;"),
        ("a.rs", "fn f() { println!(\"{}\", crate::b::F); } pub struct A;"),
        ("b.rs", "mod c; pub const F: u8 = 1;"),
        ("b/c.rs", "use crate::A;"),
    ]);
    assert_eq!(reexported, ["crate: a needs b; b needs a"]);
    let of_three =
        read(&[("lib.rs", "mod m { mod a { use super::b; } mod b { use super::c; } mod c { use super::a; } }")]);
    assert_eq!(of_three, ["crate::m: a needs b; b needs c; c needs a"]);
    let none = read(&[
        ("lib.rs", "mod a; mod b; pub struct Top; use b::B;"),
        ("a.rs", "use crate::Top; use crate::b::B; #[cfg(test)] mod tests { }"),
        ("b.rs", "use super::Top; pub struct B; #[cfg(test)] mod tests { use crate::a; }"),
    ]);
    assert_eq!(none, [""; 0]);
}
