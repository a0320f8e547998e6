//! Templates: arguments, values of `-x` and files of `--template`, in which placeholders like `{{host.oob_ip}}` are
//! replaced for each rank, once the rank table is known. An argument or a value is a template only if it has a
//! placeholder of rlaunch, or one that is misspelt: programs have placeholders of their own.

use super::{AppError, AppSpec, AppTitle};
use crate::job::JobSpec;
use crate::map::RankMap;
use crate::options::NamedPort;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value, ValueKind};
use minijinja::{Environment, ErrorKind, Template, UndefinedBehavior, escape_formatter};
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::env::redacted_value;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::{RankFile, WorkingDir};
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell::without_secrets;
use rlaunch_text::text;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Maximum size of a template file, in bytes.
const MAX_BYTES: u64 = 256 << 10;
/// Maximum number of characters of a template that an error message quotes.
const QUOTED: usize = 80;

/// File of `--template FILE:DEST`.
#[derive(Clone, Debug)]
pub struct TemplateFile {
    /// Path of the file on this machine.
    pub source: PathBuf,
    pub text: String,
    /// Path of the rendered file on hosts, which may contain placeholders as well.
    pub dest: String,
}

impl TemplateFile {
    /// Parses `FILE:DEST`, and reads FILE.
    pub fn load(option: &str) -> Result<TemplateFile, AppError> {
        let parts =
            option.split_once(':').filter(|(file, dest)| !file.is_empty() && !dest.is_empty());
        let (source, dest) = parts.ok_or_else(|| AppError::NoDest(option.to_owned()))?;
        let text = read(Path::new(source))
            .map_err(|error| AppError::Read { path: source.into(), source: error })?;
        Ok(TemplateFile { source: source.into(), text, dest: dest.to_owned() })
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        Err(io::Error::other(format!("it is longer than {} KiB", MAX_BYTES >> 10)))
    } else {
        Ok(text)
    }
}

/// Place at which a template's text is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateUse<'a> {
    /// Argument at this position in argv; position 0 is the program.
    Argument(u32),
    Variable(&'a OsStr),
    /// Destination path of the file with this index in [`AppSpec::templates`].
    Dest(usize),
    /// Content of the file with this index in [`AppSpec::templates`].
    Content(usize),
}

/// Text of a template, and the place at which it is used.
#[derive(Clone, Copy, Debug)]
pub struct TemplateText<'a> {
    pub text: &'a str,
    pub usage: TemplateUse<'a>,
}

impl<'a> TemplateText<'a> {
    /// Returns the text for the engine. In files every expression is rlaunch's, as they are written for it.
    fn code(&self) -> Cow<'a, str> {
        match self.usage {
            TemplateUse::Argument(_) | TemplateUse::Variable(_) => without_foreign(self.text),
            TemplateUse::Dest(_) | TemplateUse::Content(_) => self.text.into(),
        }
    }

    /// Describes the template for an error message, without secrets.
    pub fn describe(&self, app: &AppSpec) -> String {
        let cut = |text: String| text.chars().take(QUOTED).collect::<String>();
        match self.usage {
            TemplateUse::Argument(_) => {
                let word = without_secrets(&[self.text.into()]).concat();
                format!("`{}`", cut(word))
            }
            TemplateUse::Variable(name) => {
                let name = name.to_string_lossy();
                format!("`-x {name}={}`", cut(redacted_value(&name, self.text)))
            }
            TemplateUse::Dest(_) => format!("`{}` of --template", cut(self.text.to_owned())),
            TemplateUse::Content(index) => app.templates[index].source.display().to_string(),
        }
    }
}

/// Placeholders: first names, with the names that may follow each.
const NAMES: &[(&str, &[&str])] = &[
    ("host", &["name", "hostname", "oob_ip"]),
    ("rank", &["index", "local", "hca", "hcas"]),
    ("node", &["index", "ranks"]),
    ("nodes", &[]),
    ("master", &["addr", "port"]),
    ("app", &["oob_ip", "hosts", "size"]),
    ("port", &[]),
    ("world_size", &[]),
];
/// Names that are not complete without the one before them, or that other launchers have, and that are not likely to be
/// those of programs.
const PARTS: &[&str] =
    &["hostname", "oob_ip", "hca", "hcas", "nnodes", "master_addr", "master_port"];
/// Minimum length of a name that is recognised alone when it is misspelt. Shorter ones are too near to other words.
const LONG: usize = 8;

/// Tells whether a text has a placeholder of rlaunch, or nearly so. If not, its braces mean something to the
/// program, as in `docker inspect --format {{.State}}`.
fn has_placeholder(text: &str) -> bool {
    // This is how braces are written that are not placeholders.
    let is_escape = |(at, _): (usize, &str)| {
        // `{{-` and `{%-` strip the blanks before them.
        let code = text[at + 2..].trim_start_matches('-').trim_start();
        code.starts_with("'{{") || code.starts_with("\"{{") || code.starts_with("raw")
    };
    let has_braces =
        text.match_indices("{{").any(is_escape) || text.match_indices("{%").any(is_escape);
    let inside =
        |open: &'static str| text.split(open).skip(1).filter_map(|rest| rest.split('}').next());
    let mut code = inside("{{").chain(inside("{%"));
    text.contains("{{") && (has_braces || code.any(names_placeholder))
}

/// Tells whether an expression has a placeholder of rlaunch, or nearly so.
fn names_placeholder(code: &str) -> bool {
    let is_outside = |c: char| !(is_of_name(c) || ".$[]\"'".contains(c));
    code.split(is_outside).any(is_placeholder)
}

/// Tells whether a text has a statement of the engine, as `{% for %}`. Others have `{%`, too: awk's `{%d}`.
fn has_statement(text: &str) -> bool {
    const STATEMENTS: &[&str] = &["if", "for", "set", "raw", "with", "filter", "macro"];
    text.split("{%").skip(1).any(|code| {
        let code = code.trim_start_matches(['-', '+']).trim_start();
        STATEMENTS.contains(&code.split(|c: char| !is_of_name(c)).next().unwrap_or_default())
    })
}

/// Returns the text of a template for the engine, with braces that are not rlaunch's as they stand: `{{host.name}}:{{.State}}`,
/// and `${#x}`, which is no comment. In a text with statements names and comments may be the text's own.
fn without_foreign(text: &str) -> Cow<'_, str> {
    if has_statement(text) {
        return text.into();
    }
    let (mut kept, mut rest) = (String::new(), text);
    let first = |text: &str| ["{{", "{#", "{%"].iter().filter_map(|open| text.find(open)).min();
    while let Some((before, from)) = first(rest).map(|at| rest.split_at(at)) {
        kept.push_str(before);
        let whole = match from.split_at(2) {
            ("{{", _) => {
                let (whole, is_foreign) = expression(from);
                let [open, close] =
                    if is_foreign { ["{% raw %}", "{% endraw %}"] } else { [""; 2] };
                kept.extend([open, whole, close]);
                whole
            }
            (open, _) => {
                kept.extend(["{{ '", open, "' }}"]);
                open
            }
        };
        rest = &from[whole.len()..];
    }
    kept.push_str(rest);
    kept.into()
}

/// Returns the expression with which a text begins, up to the next one where it has no end of its own, and whether it means
/// nothing to rlaunch.
fn expression(text: &str) -> (&str, bool) {
    let is_string = |code: &str| code.trim_start_matches('-').trim_start().starts_with(['"', '\'']);
    let end = text.find("}}").map(|at| at + 2);
    // Before the next one stands a string that has braces, or what is no expression.
    let is_other =
        |next: &usize| !is_string(&text[2..*next]) && !names_placeholder(&text[2..*next]);
    let next = text[2..].find("{{").map(|at| at + 2).filter(is_other);
    if let Some(next) = next.filter(|next| end.is_none_or(|end| *next < end)) {
        return (&text[..next], true);
    }
    let whole = &text[..end.unwrap_or(text.len())];
    let code = &whole[2..];
    let is_foreign =
        end.is_some() && !is_string(code) && !names_placeholder(code.trim_end_matches('}'));
    (whole, is_foreign)
}

/// Lists the names of the ports that programs ask for by `port["NAME"]`, each with the number of the program on whose first
/// node it is free: the one of this name, or else the first.
pub fn named_ports(apps: &[AppSpec]) -> Vec<NamedPort> {
    let mut names: Vec<&str> = Vec::new();
    let all = apps.iter().flat_map(texts);
    for rest in all.flat_map(|text| text.text.split("port[").skip(1)) {
        let quoted = |quote: char| rest.strip_prefix(quote)?.split_once(quote);
        let Some((name, _)) = quoted('"').or_else(|| quoted('\'')) else { continue };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let of = |name: &str| apps.iter().position(|app| app.name.as_deref() == Some(name));
    let port = |name: &str| NamedPort { name: name.to_owned(), app: of(name).unwrap_or(0) };
    names.into_iter().map(port).collect()
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Tells whether a path such as `host.name` or `app["x"].hosts` is a placeholder, or a misspelt one. One that begins
/// with a dot, a dollar sign or a quote is none.
fn is_placeholder(path: &str) -> bool {
    let path = path.trim_start_matches('[');
    let (first, rest) = path.split_at(path.find(|c: char| !is_of_name(c)).unwrap_or(path.len()));
    let is_like = |known: &&str, typed: &str| typed == *known || text::is_one_edit(typed, known);
    let has_part = |known: &[&str]| {
        let mut parts = rest.split(|c: char| !is_of_name(c));
        parts.any(|part| known.iter().any(|known| is_like(known, part)))
    };
    let is_known = |(name, parts): &(&str, &[&str])| {
        let is_enough = || if parts.is_empty() { name.len() >= LONG } else { has_part(parts) };
        first == *name || (is_like(name, first) && is_enough())
    };
    PARTS.contains(&first) || NAMES.iter().any(is_known)
}

/// Lists the texts of a program that are templates: arguments, variables of `-x`, and files.
pub fn texts(app: &AppSpec) -> Vec<TemplateText<'_>> {
    let is_template = |text: &&str| has_placeholder(text);
    let arguments = (1..).zip(app.argv.iter().skip(1)).filter_map(|(at, word)| {
        let text = word.to_str().filter(is_template)?;
        Some(TemplateText { text, usage: TemplateUse::Argument(at) })
    });
    let is_user_set = |name: &OsStr| app.user_set_vars.iter().any(|asked| name == asked.as_str());
    let variables = app.env.iter().filter(|var| is_user_set(&var.name)).filter_map(|var| {
        let text = var.value.to_str().filter(is_template)?;
        Some(TemplateText { text, usage: TemplateUse::Variable(&var.name) })
    });
    let files = app.templates.iter().enumerate().flat_map(|(index, file)| {
        let dest = TemplateText { text: &file.dest, usage: TemplateUse::Dest(index) };
        [dest, TemplateText { text: &file.text, usage: TemplateUse::Content(index) }]
    });
    arguments.chain(variables).chain(files).collect()
}

/// Returns the template engine. An unknown placeholder is an error, as is one that stands for several values, and values
/// are not escaped.
pub fn environment<'a>() -> Environment<'a> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // The engine writes `rank` as {'index': 0, 'local': 0}, which no program wants.
    environment.set_formatter(|out, state, value| {
        if value.kind() != ValueKind::Map {
            return escape_formatter(out, state, value);
        }
        let names: Vec<String> = value.try_iter()?.map(|name| name.to_string()).collect();
        let detail = if names.is_empty() {
            "it has a value for each name, as in port[\"NAME\"]".to_owned()
        } else {
            format!("it has several values; name one of them: {}", names.join(", "))
        };
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, detail))
    });
    // Without this, the engine removes the newline at the end of a file.
    if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
        environment.set_syntax(syntax);
    }
    environment
}

/// Checks the syntax of a program's templates. This needs no rank table, so errors are found before a host is
/// connected to.
pub fn check(app: &AppSpec, title: &AppTitle) -> Result<(), AppError> {
    for text in texts(app) {
        let code = text.code();
        let environment = environment();
        environment.template_from_str(&code).map_err(|error| AppError::Syntax {
            title: title.clone(),
            what: text.describe(app),
            cause: cause(&error, text),
        })?;
    }
    Ok(())
}

/// Formats the cause of an error in a template, with the line number if the template is a file.
pub fn cause(error: &minijinja::Error, text: TemplateText<'_>) -> String {
    let mut cause = error.kind().to_string();
    if let Some(detail) = error.detail() {
        cause = format!("{cause}: {detail}");
    }
    match (text.usage, error.line()) {
        (TemplateUse::Content(_), Some(line)) => format!("line {line}: {cause}"),
        _ => cause,
    }
}

/// Placeholders that a template may contain, as the text of a hint.
pub(super) const PLACEHOLDERS: &str = "host.name, host.hostname, host.oob_ip, rank.index, rank.local, \
    rank.hca, rank.hcas, world_size, nodes, node.index, node.ranks, master.addr, master.port, \
    port[\"NAME\"], app[\"NAME\"].oob_ip, app[\"NAME\"].hosts, app[\"NAME\"].size; rank.hca where the host \
    has RDMA, and NAME of app as --name has it";

/// Rendered templates of one rank: arguments, variables and files with their placeholders replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedTexts {
    /// Arguments that were templates, with their positions in argv; position 0 is the program.
    pub arguments: Vec<(u32, OsString)>,
    pub env: Vec<(OsString, OsString)>,
    pub files: Vec<RankFile>,
}

#[derive(Serialize)]
struct HostContext<'a> {
    name: &'a str,
    hostname: &'a str,
    oob_ip: String,
}

#[derive(Serialize)]
struct RankContext<'a> {
    index: u32,
    local: u32,
    /// RDMA devices, the nearest to the rank first.
    hcas: Vec<&'a str>,
    /// First of `hcas`. `None` leaves the placeholder undefined, so that a template with it is an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    hca: Option<&'a str>,
}

#[derive(Serialize)]
struct NodeContext {
    index: u32,
    /// Number of ranks on the node.
    ranks: usize,
}

#[derive(Clone, Serialize)]
struct MasterContext {
    addr: String,
    port: String,
}

#[derive(Serialize)]
struct AppContext<'a> {
    oob_ip: String,
    hosts: Vec<&'a str>,
    size: usize,
}

/// Values of the placeholders for one rank.
#[derive(Serialize)]
struct TemplateContext<'a> {
    host: HostContext<'a>,
    rank: RankContext<'a>,
    world_size: u32,
    nodes: usize,
    node: NodeContext,
    master: MasterContext,
    port: &'a BTreeMap<String, u16>,
    app: &'a BTreeMap<&'a str, AppContext<'a>>,
}

/// Ports and addresses of a job's nodes, which are known once agents have reserved the ports.
#[derive(Clone, Debug)]
pub struct JobAddresses {
    /// MASTER_ADDR and MASTER_PORT, at which rank 0 will listen.
    pub master: (IpAddr, u16),
    /// Ports that `port["NAME"]` stands for, by name.
    pub ports: BTreeMap<String, u16>,
}

impl RenderedTexts {
    /// Renders the templates of all ranks. Ranks for which nothing was rendered have no entry in the result.
    pub fn render_all(
        job: &JobSpec,
        map: &RankMap,
        table: &RankTable,
        addresses: &JobAddresses,
    ) -> Result<BTreeMap<Rank, RenderedTexts>, Failed> {
        render(&job.apps, map, table, addresses)
            .map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))
    }
}

/// Parsed templates of one program.
type Compiled<'e, 'a> = Vec<(TemplateText<'a>, Template<'e, 'a>)>;

fn render(
    apps: &[AppSpec],
    map: &RankMap,
    table: &RankTable,
    addresses: &JobAddresses,
) -> Result<BTreeMap<Rank, RenderedTexts>, AppError> {
    let mut rendered: BTreeMap<Rank, RenderedTexts> = BTreeMap::new();
    let codes: Vec<Vec<(TemplateText<'_>, Cow<'_, str>)>> = apps.iter().map(codes).collect();
    let environment = environment();
    let named = named_apps(apps, map, table);
    for ((index, app), codes) in apps.iter().enumerate().zip(&codes) {
        let master = master_of(app, addresses);
        let compiled = compile(&environment, app, index, codes)?;
        if compiled.is_empty() {
            continue;
        }
        for rank in map.ranks_of(index) {
            let known =
                JobContext { map, table, app: &named, master: &master, port: &addresses.ports };
            let Some(context) = context(known, rank) else { continue };
            let context = Value::from(Serde(context));
            rendered.insert(rank, render_rank(app, index, rank, &context, &compiled)?);
        }
    }
    check_files(apps, map, &rendered)?;
    Ok(rendered)
}

/// Returns a program's templates with their texts for the engine.
fn codes(app: &AppSpec) -> Vec<(TemplateText<'_>, Cow<'_, str>)> {
    texts(app).into_iter().map(|text| (text, text.code())).collect()
}

/// Returns the address at which a program's ranks will look for rank 0: the user's own, or that of the job.
fn master_of(app: &AppSpec, addresses: &JobAddresses) -> MasterContext {
    let set = |name: &str| {
        let is_set = app.user_set_vars.iter().any(|asked| asked == name);
        let var = app.env.iter().find(|var| is_set && var.name == name)?;
        Some(var.value.to_string_lossy().into_owned()).filter(|value| !has_placeholder(value))
    };
    let (addr, port) = addresses.master;
    MasterContext {
        addr: set(names::MASTER_ADDR).unwrap_or_else(|| addr.to_string()),
        port: set(names::MASTER_PORT).unwrap_or_else(|| port.to_string()),
    }
}

fn compile<'e, 'a>(
    environment: &'e Environment<'a>,
    app: &AppSpec,
    index: usize,
    codes: &'a [(TemplateText<'a>, Cow<'a, str>)],
) -> Result<Compiled<'e, 'a>, AppError> {
    let compile = |(text, code): &'a (TemplateText<'a>, Cow<'a, str>)| {
        let text = *text;
        let template = environment.template_from_str(code);
        let template = template.map_err(|error| AppError::Syntax {
            title: app.title(index),
            what: text.describe(app),
            cause: cause(&error, text),
        });
        Ok((text, template?))
    };
    codes.iter().map(compile).collect()
}

fn render_rank(
    app: &AppSpec,
    index: usize,
    rank: Rank,
    context: &Value,
    compiled: &Compiled<'_, '_>,
) -> Result<RenderedTexts, AppError> {
    let mut rendered = RenderedTexts::default();
    for (text, template) in compiled {
        let done = template.render(context.clone()).map_err(|error| AppError::Fill {
            title: app.title(index),
            what: text.describe(app),
            rank: rank.0,
            cause: cause(&error, *text),
        })?;
        match text.usage {
            TemplateUse::Argument(at) => rendered.arguments.push((at, done.into())),
            TemplateUse::Variable(name) => rendered.env.push((name.to_owned(), done.into())),
            TemplateUse::Dest(_) => {
                rendered.files.push(RankFile { path: done.into(), content: vec![] });
            }
            // A file's content follows its path among the templates, so the last file is the one with this
            // content.
            TemplateUse::Content(_) => {
                if let Some(file) = rendered.files.last_mut() {
                    file.content = done.into_bytes();
                }
            }
        }
    }
    Ok(rendered)
}

/// Returns the values of the placeholders `app["NAME"]`, by name, for the programs that have a name.
fn named_apps<'a>(
    apps: &'a [AppSpec],
    map: &'a RankMap,
    table: &'a RankTable,
) -> BTreeMap<&'a str, AppContext<'a>> {
    let app_context = |(index, app): (usize, &'a AppSpec)| {
        let nodes: Vec<_> = map.nodes_of(index).collect();
        let first = table.nodes().get(nodes.first()?.id.index())?;
        let is_own = |rank: &u32| map.application_of(Rank(*rank)) == index;
        let hosts = nodes.iter().map(|node| node.host.name.as_str()).collect();
        let size = (0..map.world_size).filter(is_own).count();
        Some((app.name.as_deref()?, AppContext { oob_ip: first.address.to_string(), hosts, size }))
    };
    apps.iter().enumerate().filter_map(app_context).collect()
}

/// What is known of a job, for the placeholders of each of a program's ranks.
#[derive(Clone, Copy)]
struct JobContext<'a> {
    map: &'a RankMap,
    table: &'a RankTable,
    app: &'a BTreeMap<&'a str, AppContext<'a>>,
    master: &'a MasterContext,
    port: &'a BTreeMap<String, u16>,
}

fn context(known: JobContext<'_>, rank: Rank) -> Option<TemplateContext<'_>> {
    let JobContext { map, table, app, master, port } = known;
    let row = table.ranks().get(rank.index())?;
    let node = table.nodes().get(row.node.index())?;
    let mut hcas: Vec<&str> = Vec::new();
    for own in &row.nics {
        let device = node.nics.get(own.nic as usize)?.device.as_str();
        if !hcas.contains(&device) {
            hcas.push(device);
        }
    }
    let on_node = map.nodes.get(row.node.index()).map(|node| node.ranks.len());
    let (name, hostname) = (node.host.as_str(), node.hostname.as_str());
    Some(TemplateContext {
        host: HostContext { name, hostname, oob_ip: node.address.to_string() },
        rank: RankContext {
            index: rank.0,
            local: row.local_rank.0,
            hca: hcas.first().copied(),
            hcas,
        },
        world_size: table.ranks().len().try_into().unwrap_or(u32::MAX),
        nodes: map.nodes.len(),
        node: NodeContext { index: row.node.0, ranks: on_node.unwrap_or_default() },
        master: master.clone(),
        port,
        app,
    })
}

/// Returns an error if two ranks would write different content to the same path on a host.
fn check_files(
    apps: &[AppSpec],
    map: &RankMap,
    rendered: &BTreeMap<Rank, RenderedTexts>,
) -> Result<(), AppError> {
    let mut seen: BTreeMap<(NodeId, PathBuf), (Rank, &[u8])> = BTreeMap::new();
    for (&rank, texts) in rendered {
        let Some(node) = map.node_of(rank) else { continue };
        let index = map.application_of(rank);
        let directory = match &apps[index].wdir {
            WorkingDir::SameAsLauncher(directory) => &directory.path,
            WorkingDir::Required(directory) => directory,
        };
        for file in &texts.files {
            let path = directory.join(&file.path);
            let (other, content) = seen.entry((node.id, path)).or_insert((rank, &file.content));
            if *content != file.content {
                return Err(AppError::TwoFiles {
                    title: apps[index].title(index),
                    dest: Path::new(&file.path).display().to_string(),
                    rank: rank.0,
                    other: other.0,
                    host: node.host.to_string(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
