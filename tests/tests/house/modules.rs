//! A crate's modules as its files declare them: what each module defines and imports, and every path that it names.
//!
//! Only the syntax of the code is read. Modules, items and methods that are `cfg(test)` are left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use syn::{
    Attribute, Expr, ExprLit, Ident, ImplItem, Item, ItemMod, ItemUse, Lit, Macro, Meta, Token, UseTree,
    Visibility,
    buffer::{Cursor, TokenBuffer},
    punctuated::Punctuated,
    visit::{self, Visit},
};

/// Gives the text of a file, if there is such a file.
pub(crate) type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// A path as the code has it, word by word.
pub(crate) type Words = Vec<String>;

/// A crate. The first of its modules is the root.
#[derive(Default)]
pub(crate) struct Crate {
    pub(crate) modules: Vec<Module>,
    /// Macros that are marked `macro_export`, which belong to the root, and the modules that define them.
    pub(crate) exported: BTreeMap<String, usize>,
    /// Files that only tests use.
    for_tests: BTreeSet<PathBuf>,
}

/// A module: a file, or a part of one.
#[derive(Default)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) parent: Option<usize>,
    pub(crate) children: BTreeMap<String, usize>,
    /// The items that the module defines itself, without those inside a function or an `impl`.
    pub(crate) items: BTreeSet<String>,
    /// The macros among `items`. The modules below have them without an import.
    pub(crate) macros: BTreeSet<String>,
    /// Whether a macro makes items here. Their names are unknown.
    pub(crate) generated: bool,
    /// The names that `use` brings in, and the paths for which they stand.
    pub(crate) imports: BTreeMap<String, Vec<Words>>,
    /// `use x::*`.
    pub(crate) globs: Vec<Words>,
    /// Every path that the module names. A re-export (`pub use`) does not count.
    pub(crate) paths: BTreeSet<Words>,
    /// The calls of macros among the paths of one word.
    pub(crate) calls: BTreeSet<String>,
}

/// The file of a module, and the folder of the modules below it.
struct Place {
    file: PathBuf,
    folder: PathBuf,
}

impl Place {
    /// The place of a file whose children are beside it: a crate's root, or a file that `#[path]` names.
    fn beside(file: PathBuf) -> Self {
        let folder = file.parent().map(Path::to_owned).unwrap_or_default();
        Self { file, folder }
    }
}

impl Crate {
    /// Reads the crate whose root is this file.
    pub(crate) fn read(root: &Path, read: Read<'_>) -> Result<Self> {
        Self::at(Place::beside(root.to_owned()), read)
    }

    /// All files of the crate.
    pub(crate) fn files(&self) -> BTreeSet<PathBuf> {
        self.modules.iter().map(|module| &module.file).chain(&self.for_tests).cloned().collect()
    }

    fn at(place: Place, read: Read<'_>) -> Result<Self> {
        let mut this = Self::default();
        this.file(place, None, read)?;
        Ok(this)
    }

    fn file(&mut self, place: Place, parent: Option<usize>, read: Read<'_>) -> Result<usize> {
        let text = read(&place.file).with_context(|| format!("no file {}", place.file.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| place.file.display().to_string())?;
        let at = self.push(place.file, parent);
        self.fill(at, &place.folder, &parsed.items, read)?;
        Ok(at)
    }

    fn push(&mut self, file: PathBuf, parent: Option<usize>) -> usize {
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules.len() - 1
    }

    fn fill(&mut self, at: usize, folder: &Path, items: &[Item], read: Read<'_>) -> Result<()> {
        for item in items {
            if let Item::Mod(module) = item {
                self.child(at, folder, module, read)?;
            } else if !is_for_tests(attributes(item)) {
                if let Item::Macro(item) = item
                    && let Some(name) = &item.ident
                    && item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"))
                {
                    self.exported.insert(name.to_string(), at);
                }
                let module = &mut self.modules[at];
                module.define(item);
                Paths { module }.visit_item(item);
            }
        }
        Ok(())
    }

    fn child(&mut self, at: usize, folder: &Path, module: &ItemMod, read: Read<'_>) -> Result<()> {
        let for_tests = is_for_tests(&module.attrs);
        let name = module.ident.to_string();
        let child = match &module.content {
            Some(_) if for_tests => return Ok(()),
            Some((_, items)) => {
                let file = self.modules[at].file.clone();
                let child = self.push(file, Some(at));
                self.fill(child, &folder.join(&name), items, read)?;
                child
            }
            None => {
                let place = place(&self.modules[at].file, folder, module, read);
                if for_tests {
                    self.for_tests.extend(Self::at(place, read)?.files());
                    return Ok(());
                }
                self.file(place, Some(at), read)?
            }
        };
        self.modules[at].children.insert(name, child);
        Ok(())
    }
}

/// The place of a module that `file` declares. The children of `file` are in `folder`.
fn place(file: &Path, folder: &Path, module: &ItemMod, read: Read<'_>) -> Place {
    if let Some(path) = module.attrs.iter().find_map(path_of) {
        return Place::beside(Place::beside(file.to_owned()).folder.join(path));
    }
    let name = module.ident.to_string();
    let below = folder.join(&name);
    let file = folder.join(format!("{name}.rs"));
    let file = if read(&file).is_some() { file } else { below.join("mod.rs") };
    Place { file, folder: below }
}

/// The file that `#[path = ".."]` names.
fn path_of(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// Visits the parts of an item, unless the item is for tests.
pub(crate) fn visit_program_item<'ast>(visitor: &mut impl Visit<'ast>, item: &'ast Item) {
    if !is_for_tests(attributes(item)) {
        visit::visit_item(visitor, item);
    }
}

/// Visits the parts of an item of an `impl`, unless it is a method for tests.
pub(crate) fn visit_program_impl_item<'ast>(visitor: &mut impl Visit<'ast>, item: &'ast ImplItem) {
    match item {
        ImplItem::Fn(method) if is_for_tests(&method.attrs) => {}
        _ => visit::visit_impl_item(visitor, item),
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let mut conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.any(|cfg| cfg.parse_args::<Meta>().is_ok_and(|condition| needs_test(&condition)))
}

fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(needs_test)),
        _ => false,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
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

impl Module {
    fn define(&mut self, item: &Item) {
        let name = match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::TraitAlias(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Macro(item) => match &item.ident {
                Some(name) => {
                    self.macros.insert(name.to_string());
                    name
                }
                None => {
                    self.generated = true;
                    return;
                }
            },
            _ => return,
        };
        self.items.insert(name.to_string());
    }

    /// Adds the names that a `use` has behind the path `before`.
    fn import(&mut self, tree: &UseTree, before: &[String], handed_on: bool) {
        let with = |word: &Ident| -> Words { [before, &[word.to_string()]].concat() };
        match tree {
            UseTree::Path(part) => self.import(&part.tree, &with(&part.ident), handed_on),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, before, handed_on);
                }
            }
            // `x::{self}` brings in the name `x`.
            UseTree::Name(part) if part.ident == "self" => {
                self.name(before.last().cloned().unwrap_or_default(), with(&part.ident), handed_on);
            }
            UseTree::Name(part) => self.name(part.ident.to_string(), with(&part.ident), handed_on),
            UseTree::Rename(part) => self.name(part.rename.to_string(), with(&part.ident), handed_on),
            UseTree::Glob(_) => {
                self.globs.push(before.to_vec());
                if !handed_on {
                    self.paths.insert([before, &["*".to_owned()]].concat());
                }
            }
        }
    }

    fn name(&mut self, name: String, stands_for: Words, handed_on: bool) {
        if !handed_on {
            self.paths.insert(stands_for.clone());
        }
        self.imports.entry(name).or_default().push(stands_for);
    }
}

/// Finds the paths of a module's items.
struct Paths<'a> {
    module: &'a mut Module,
}

impl Paths<'_> {
    /// Adds the paths among tokens that are no syntax tree, as in a macro or an attribute. In an attribute a text may be a path too.
    fn tokens(&mut self, mut at: Cursor<'_>, in_attribute: bool) {
        // The number of dots and of colons right before a word. In `a.b` the word `b` is a field, in `0..b` it is a path, and in `<a>::b` it is no path of its own.
        let mut dots = 0;
        let mut colons = 0;
        while !at.eof() {
            let before = (dots, colons);
            dots = 0;
            colons = 0;
            at = if let Some((first, behind)) = at.ident() {
                let (words, behind) = path(&first, behind);
                if before.0 != 1 && before.1 != 2 {
                    if words.len() == 1 && is_call(behind) {
                        self.module.calls.insert(words[0].clone());
                    }
                    self.module.paths.insert(words);
                }
                behind
            } else if let Some((inside, _, _, behind)) = at.any_group() {
                self.tokens(inside, in_attribute);
                behind
            } else if let Some((sign, behind)) = at.punct() {
                match sign.as_char() {
                    '.' => dots = before.0 + 1,
                    ':' => colons = before.1 + 1,
                    _ => {}
                }
                behind
            } else if let Some((literal, behind)) = at.literal() {
                if in_attribute {
                    self.module.paths.extend(path_in(&literal.to_string()));
                }
                behind
            } else if let Some((_, behind)) = at.lifetime() {
                behind
            } else {
                let Some((_, behind)) = at.token_tree() else { return };
                behind
            }
        }
    }
}

/// The path that begins with this word, and the tokens behind the path.
fn path<'a>(first: &Ident, mut at: Cursor<'a>) -> (Words, Cursor<'a>) {
    let mut words = vec![first.to_string()];
    while let Some((word, behind)) = behind(at, ':').and_then(|at| behind(at, ':')).and_then(Cursor::ident) {
        words.push(word.to_string());
        at = behind;
    }
    (words, at)
}

/// The tokens behind a sign, if that sign comes next.
fn behind(at: Cursor<'_>, wanted: char) -> Option<Cursor<'_>> {
    let (sign, behind) = at.punct()?;
    (sign.as_char() == wanted).then_some(behind)
}

/// Whether the next tokens make the word before them a macro's call.
fn is_call(at: Cursor<'_>) -> bool {
    behind(at, '!').and_then(Cursor::any_group).is_some()
}

/// The path in a text, as in `with = "values::seconds"`. `None` if the text is no path.
fn path_in(literal: &str) -> Option<Words> {
    let text = literal.strip_prefix('"')?.strip_suffix('"')?;
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    let words = text.split("::");
    (text.contains("::") && words.clone().all(is_word)).then(|| words.map(str::to_owned).collect())
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            _ if is_for_tests(attributes(item)) => {}
            Item::Verbatim(tokens) => self.tokens(TokenBuffer::new2(tokens.clone()).begin(), false),
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(method) if is_for_tests(&method.attrs) => {}
            ImplItem::Verbatim(tokens) => self.tokens(TokenBuffer::new2(tokens.clone()).begin(), false),
            _ => visit::visit_impl_item(self, item),
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.module.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.module.paths.insert(path.segments.iter().map(|part| part.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.module.calls.extend(call.path.get_ident().map(Ident::to_string));
        self.visit_path(&call.path);
        self.tokens(TokenBuffer::new2(call.tokens.clone()).begin(), false);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            // The name of an attribute is no path of this crate.
            Meta::Path(_) => {}
            Meta::List(list) => self.tokens(TokenBuffer::new2(list.tokens.clone()).begin(), true),
            Meta::NameValue(pair) => self.visit_expr(&pair.value),
        }
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::Verbatim(tokens) => self.tokens(TokenBuffer::new2(tokens.clone()).begin(), false),
            _ => visit::visit_expr(self, expression),
        }
    }
}
