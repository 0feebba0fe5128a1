//! `generate unit`: writes a systemd service that plays files, and a timer and a service for each CronJob.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use executor_cli_kit::failure::Failure;
use executor_cli_kit::network::Chosen;
use executor_cli_kit::output::print;
use executor_cli_kit::report::note;
use executor_kube::plan::CronPlan;

use crate::args::{FilesArgs, UnitArgs, ValidateArg};
use crate::error::KubeError;
use crate::input::Input;

pub(crate) fn generate(args: &UnitArgs) -> Result<u8, Failure> {
    let input = Input::read(&args.files)?;
    let (plan, warnings) = input.plan(None)?;
    for warning in &warnings {
        note(&format!("warning: {warning}"));
    }
    let options = options(&args.files, &input.play)?;
    let mut units = vec![(format!("executor-kube-{}.service", input.play), service(&input.play, &options))];
    for cron in plan.crons.iter().filter(|cron| !cron.cron.suspended) {
        if let Some(zone) = cron.cron.time_zone.as_deref().filter(|zone| !is_known(zone)) {
            let message = format!("CronJob {}: the time zone {zone} is unknown on this machine", cron.name);
            return Err(KubeError::NoPod(message).into());
        }
        let name = format!("executor-kube-{}-{}-{}", input.play, cron.namespace, cron.name);
        units.push((format!("{name}.service"), run_of(cron, &options)));
        units.push((format!("{name}.timer"), timer(cron)));
    }
    let Some(out) = &args.out else {
        let mut text = String::new();
        for (index, (name, unit)) in units.iter().enumerate() {
            let _ = write!(text, "{}# {name}\n{unit}", if index > 0 { "\n" } else { "" });
        }
        return print(text).map(|()| 0);
    };
    fs::create_dir_all(out).map_err(|source| KubeError::Write { path: out.clone(), source })?;
    for (name, unit) in units {
        let path = out.join(name);
        fs::write(&path, unit).map_err(|source| KubeError::Write { path: path.clone(), source })?;
        println!("{}", path.display());
    }
    Ok(0)
}

/// Returns true if the time zone exists on this host, or if the host has no time zone database.
fn is_known(zone: &str) -> bool {
    let zones = Path::new("/usr/share/zoneinfo");
    !zones.is_dir() || zones.join(zone).is_file()
}

/// Returns the options and files for the command line in a unit.
fn options(args: &FilesArgs, play: &str) -> Result<String, KubeError> {
    let mut words = vec!["--name".to_owned(), play.to_owned()];
    match args.validate {
        ValidateArg::Strict => {}
        ValidateArg::Warn => words.push("--validate=warn".into()),
        ValidateArg::Ignore => words.push("--validate=ignore".into()),
    }
    match &args.network {
        Chosen::None => {}
        Chosen::Host => words.push("--network=host".into()),
        Chosen::Cni(name) if name.is_empty() => words.push("--network=cni".into()),
        Chosen::Cni(name) => words.push(format!("--network=cni:{name}")),
        Chosen::Path(path) => words.push(format!("--network=ns:{path}")),
    }
    if args.egress {
        words.push("--egress".into());
    }
    for (image, rootfs) in &args.images {
        words.push(format!("--image-override={image}={rootfs}"));
    }
    for (flag, file) in [("conventions", &args.conventions), ("registry-auth-file", &args.registry_auth_file)] {
        if let Some(file) = file {
            words.push(format!("--{flag}={}", absolute(file)?));
        }
    }
    for path in &args.files {
        words.push(absolute(path)?);
    }
    Ok(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
}

fn absolute(path: &Path) -> Result<String, KubeError> {
    if path == Path::new("-") {
        let message = "a unit cannot read standard input: name a file".into();
        return Err(KubeError::Input { path: path.to_owned(), message });
    }
    let whole: PathBuf = path.canonicalize().map_err(|source| KubeError::Read { path: path.to_owned(), source })?;
    match whole.to_str() {
        Some(text) if !text.contains('\n') => Ok(text.to_owned()),
        _ => Err(KubeError::Input { path: path.to_owned(), message: "the path must be a single line of UTF-8".into() }),
    }
}

/// Quotes an argument for ExecStart (systemd.service(5)), and escapes specifiers and variables.
fn quoted(word: &str) -> String {
    let word = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-=:@,%$+".contains(&byte));
    if plain { word } else { format!("\"{word}\"") }
}

fn service(play: &str, options: &str) -> String {
    format!(
        "[Unit]\n\
         Description=Kubernetes objects of {play}, played by executor\n\
         Requires=executord.service\n\
         After=executord.service network-online.target\n\
         Wants=network-online.target\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart=/usr/bin/agent-cli kube play {options}\n\
         ExecReload=/usr/bin/agent-cli kube play {options}\n\
         ExecStop=/usr/bin/agent-cli kube down {play}\n\
         TimeoutStartSec=infinity\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )
}

fn run_of(cron: &CronPlan, options: &str) -> String {
    let name = format!("{}/{}", cron.namespace, cron.name);
    // systemd does not start a running service again, so every concurrency policy has the effect of Forbid.
    let concurrency = &cron.cron.concurrency;
    format!(
        "[Unit]\n\
         Description=CronJob {name} ({concurrency}), run by executor\n\
         Requires=executord.service\n\
         After=executord.service\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         ExecStart=/usr/bin/agent-cli kube play --cron-job {name} {options}\n\
         TimeoutStartSec=infinity\n"
    )
}

fn timer(cron: &CronPlan) -> String {
    let mut text = format!("[Unit]\nDescription=CronJob {}/{}\n\n[Timer]\n", cron.namespace, cron.name);
    for line in cron.cron.schedule.on_calendar(cron.cron.time_zone.as_deref()) {
        let _ = writeln!(text, "OnCalendar={line}");
    }
    text.push_str("AccuracySec=1s\nPersistent=true\n\n[Install]\nWantedBy=timers.target\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_words_are_quoted_and_escaped() {
        assert_eq!(quoted("/srv/a.yaml"), "/srv/a.yaml");
        assert_eq!(quoted("/srv/a b%c\"$"), "\"/srv/a b%%c\\\"$$\"");
    }
}
