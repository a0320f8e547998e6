//! From what was typed to programs.

use super::JobError;
use crate::cli::args::{AnotherArgs, ApplicationArgs};
use crate::cli::host_selection::ListingError;
use crate::hosts::{self, Host, HostSet, SlotsBy};
use crate::job::apps::template::{self, TemplateFile};
use crate::job::apps::{AppError, AppSpec, Title, after};
use crate::plan::rank_env;
use rlaunch_bootstrap::job::{ScriptCheck, WorkingDir};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Every host of the job: `common`, and what programs name for themselves.
pub(crate) fn all_hosts(
    common: &[Host],
    others: &[AnotherArgs],
) -> Result<Vec<Host>, ListingError> {
    let mut all = HostSet::default();
    common.iter().cloned().try_for_each(|host| all.add(host))?;
    for own in others {
        hosts::parse(&own.hosts)?.into_iter().try_for_each(|host| all.add(host))?;
    }
    Ok(all.into_hosts())
}

/// How many ranks are on the job's own hosts at least: one where a program does not say.
pub(crate) fn ranks_on_common(first: Option<u32>, others: &[AnotherArgs]) -> u32 {
    let others = others.iter().filter(|other| other.hosts.is_empty()).map(|other| other.ranks);
    others.chain([first]).fold(0, |all: u32, ranks| all.saturating_add(ranks.unwrap_or(1)))
}

/// All programs, and the files that are preloaded for any of them: `first` as it is without what
/// `own` says, then the others, which have what is said before the first unless they say otherwise.
/// `script` looks for the script among the words of a program.
pub(crate) fn lower(
    first: AppSpec,
    own: &ApplicationArgs,
    preload: Vec<PathBuf>,
    others: Vec<AnotherArgs>,
    script: impl Fn(&[OsString]) -> Option<ScriptCheck>,
) -> Result<(Vec<AppSpec>, Vec<PathBuf>), JobError> {
    let mut files = preload;
    let mut of_application = vec![own.clone()];
    let mut apps = vec![first];
    for other in others {
        let first = &apps[0];
        let given = (first.env.clone(), first.explicit.clone());
        let (env, explicit) = rank_env::extended(given, std::env::vars_os(), &other.env)?;
        let mut preload = first.preload.clone();
        preload.extend(other.preload.iter().map(|path| place_of(path, &mut files)));
        let own_hosts = hosts::parse(&other.hosts).map_err(ListingError::from)?;
        apps.push(AppSpec {
            name: None,
            hosts: Some(own_hosts).filter(|hosts| !hosts.is_empty()),
            ranks: other.ranks,
            script: script(&other.command.argv),
            wdir: other.wdir.map_or_else(|| first.wdir.clone(), WorkingDir::Required),
            argv: other.command.argv,
            env,
            explicit,
            preload,
            after: Vec::new(),
            templates: Vec::new(),
        });
        of_application.push(other.application);
    }
    relate(&mut apps, &of_application)?;
    Ok((apps, files))
}

/// Where several programs share hosts, it has to be known how many slots these have.
pub(crate) fn check_slots(apps: &[AppSpec], common: &[Host]) -> Result<(), AppError> {
    match common.iter().find(|host| host.slots_by == SlotsBy::Open) {
        Some(open) if apps.len() > 1 => Err(AppError::OpenSlots(open.to_string())),
        _ => Ok(()),
    }
}

/// Which of `files` this is, which it is from now on.
fn place_of(path: &Path, files: &mut Vec<PathBuf>) -> u32 {
    let at = files.iter().position(|file| file == path).unwrap_or_else(|| {
        files.push(path.to_owned());
        files.len() - 1
    });
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Names, conditions and templates, once all programs are known.
fn relate(apps: &mut [AppSpec], typed: &[ApplicationArgs]) -> Result<(), AppError> {
    let names: Vec<Option<String>> = typed.iter().map(|typed| typed.name.clone()).collect();
    for (index, name) in names.iter().enumerate() {
        let Some(name) = name else { continue };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(AppError::Name(name.clone()));
        }
        if names[..index].contains(&Some(name.clone())) {
            return Err(AppError::NameTwice(name.clone()));
        }
    }
    let title = |apps: &[AppSpec], at: usize| Title::new(at, names[at].as_deref(), &apps[at].argv);
    for (index, typed) in typed.iter().enumerate() {
        let title = title(apps, index);
        let templates: Result<Vec<TemplateFile>, AppError> =
            typed.template.iter().map(|typed| TemplateFile::load(typed)).collect();
        let app = &mut apps[index];
        app.name.clone_from(&names[index]);
        app.after = after::parse(&typed.after, &names, &title)?;
        app.templates = templates?;
        template::check(app, &title)?;
    }
    let after: Vec<&[_]> = apps.iter().map(|app| &app.after[..]).collect();
    after::check_circles(&after, &names)?;
    let on_common = |app: &&(usize, &AppSpec)| app.1.hosts.is_none();
    let all: Vec<(usize, &AppSpec)> = apps.iter().enumerate().collect();
    let last = all.iter().rfind(on_common).map(|(index, _)| *index);
    let endless = all
        .iter()
        .filter(on_common)
        .find(|(index, app)| app.ranks.is_none() && Some(*index) != last);
    match endless {
        Some((index, app)) => Err(AppError::NoRanks(app.title(*index))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::apps::typed as job;

    #[test]
    fn what_stands_before_the_first_program_is_for_all() {
        let line = "-H a,b -np 1 -x A=1 -x B=1 --wdir /w x : -x B=2 y -np 3 : -H c --wdir /v z";
        let job = job(line).unwrap();
        let value = |app: &AppSpec, name: &str| {
            let var = app.env.iter().find(|var| var.name == name).unwrap();
            var.value.to_string_lossy().into_owned()
        };
        let values: Vec<[String; 2]> =
            job.apps.iter().map(|app| [value(app, "A"), value(app, "B")]).collect();
        assert_eq!(
            values,
            [["1", "1"], ["1", "2"], ["1", "1"]].map(|pair| pair.map(str::to_owned))
        );
        let wdirs: Vec<&WorkingDir> = job.apps.iter().map(|app| &app.wdir).collect();
        let required = |path: &str| WorkingDir::Required(path.into());
        assert_eq!(wdirs, [&required("/w"), &required("/w"), &required("/v")]);
        assert_eq!(job.apps[1].argv, ["y", "-np", "3"]);
        let map = job.map_ranks().unwrap();
        let nodes: Vec<(String, usize)> =
            map.nodes.iter().map(|node| (node.host.to_string(), node.ranks.len())).collect();
        assert_eq!(nodes, [("a".into(), 1), ("b".into(), 1), ("c".into(), 1)]);
        assert!(!job.local);
    }

    #[test]
    fn one_program_is_what_it_always_was() {
        let job = job("-np 2 x a b").unwrap();
        assert_eq!((job.apps.len(), job.local), (1, true));
        assert_eq!(job.map_ranks().unwrap().world_size, 2);
        assert!(job.first().name.is_none() && job.first().after.is_empty());
    }

    #[test]
    fn programs_without_hosts_are_on_this_machine() {
        let job = job("-np 2 x : -np 3 y").unwrap();
        assert!(job.local);
        assert_eq!(job.map_ranks().unwrap().world_size, 5);
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        let said = |line: &str| job(line).err().unwrap();
        assert!(said("-H a:2 x : -np 1 y").starts_with("application 1 (x) has no -np"));
        assert_eq!(said("-np 1 --name a x : -np 1 --name a y"), "two programs are called a");
        assert!(said("-np 1 --name a,b x").contains("is no name"));
        assert!(said("-np 1 --after srv x").contains("`srv`, which no program is called"));
        assert!(
            said("-np 1 --name a --after b x : -np 1 --name b --after a y").starts_with("a, b")
        );
        assert!(said("-np 1 x {{host.name").contains("no template"), "an open brace");
        assert!(said("-np 1 --template nothing x").contains("FILE:DEST"));
        assert!(said("-np 1 --template /no/file:/x x").contains("/no/file"));
        assert!(said("-np 1 x : -x NO_SUCH_NAME -np 1 y").contains("NO_SUCH_NAME"));
        assert!(said("-np 1 x : -H a,,b -np 1 y").contains("empty host"));
    }
}
