//! Shows installations: `status` and `list`.

use executor_bundles::installation::{Condition, ConditionKind, Installation, Phase, StoreError};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::report::print_result;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use serde_json::json;

use super::{InstallError, NameArg, Work};

impl Work<'_> {
    /// Runs `status`: prints the record and the existing pods.
    pub(crate) fn status(&self, args: &NameArg) -> Result<u8, Failure> {
        let found = self.store.read(&args.name).map_err(InstallError::from)?;
        let mut it = found.ok_or_else(|| InstallError::from(StoreError::Missing(args.name.clone())))?;
        self.with_player(async |player| {
            let mut pods = Vec::new();
            if let Some(current) = it.current().map(|revision| revision.number) {
                let play = it.play(current);
                pods = player.pods(&play).await.map_err(|error| InstallError::Pods(play, error))?;
                let unready: Vec<&str> =
                    pods.iter().filter(|pod| !is_ready(pod)).filter_map(|pod| pod["name"].as_str()).collect();
                let (healthy, reason, message) = match (pods.is_empty(), &unready[..]) {
                    (true, _) => (false, "Unhealthy", "no pod exists".to_owned()),
                    (_, []) => (true, "Healthy", "all pods are ready".to_owned()),
                    (_, unready) => (false, "Unhealthy", format!("not ready: {}", unready.join(", "))),
                };
                let reported = it.events.len();
                it.condition(ConditionKind::Healthy, healthy, reason, &message, current);
                it.events.truncate(reported); // a query records no event
            }
            let document = json!({"installation": it, "pods": pods, "unfinished": it.phase != Phase::Settled});
            print_result(self.global, &document, || status_text(&it))?;
            Ok(0)
        })
    }

    pub(crate) fn list(&self) -> Result<u8, Failure> {
        let mut all = Vec::new();
        for name in self.store.names().map_err(InstallError::from)? {
            all.extend(self.store.read(&name).map_err(InstallError::from)?);
        }
        print_result(self.global, &all, || {
            let mut table = Table::with_heading(0, &["NAME", "REVISION", "BUNDLE", "VERSION", "INSTALLED", "FOLLOWS"]);
            for it in &all {
                let current = it.current();
                let text = |text: Option<String>| (text.unwrap_or_default(), Role::Plain);
                let installed = it.conditions.iter().find(|it| it.kind == ConditionKind::Installed);
                let role = if installed.is_some_and(|it| it.status == "True") { Role::Good } else { Role::Bad };
                table.row([
                    (it.name.clone(), Role::Plain),
                    text(current.map(|it| it.number.to_string())),
                    text(current.map(|it| it.bundle.clone().unwrap_or_else(|| it.source.text()))),
                    text(current.and_then(|it| it.version.clone())),
                    (installed.map_or_else(String::new, |it| it.reason.clone()), role),
                    text(it.follows.as_ref().map(|it| format!("{}/{}", it.package, it.channel))),
                ]);
            }
            table.render(Style::detect())
        })?;
        Ok(0)
    }
}

/// Returns true if `agent-cli-kube` reports a pod as ready or done.
fn is_ready(pod: &serde_json::Value) -> bool {
    pod["ready"]
        .as_bool()
        .unwrap_or_else(|| matches!(pod["status"].as_str(), Some("Ready" | "Running" | "Succeeded" | "Completed")))
}

fn status_text(it: &Installation) -> String {
    let style = Style::detect();
    let mut text = format!("{}\n", style.paint(Role::Heading, &it.name));
    if it.phase != Phase::Settled {
        text += "a command was interrupted: the next command cleans up\n";
    }
    let mut table = Table::with_heading(2, &["CONDITION", "STATUS", "REASON", "MESSAGE"]);
    for Condition { kind, status, reason, message, .. } in &it.conditions {
        let role = if status == "True" { Role::Good } else { Role::Bad };
        table.row([
            (format!("{kind:?}"), Role::Plain),
            (status.clone(), role),
            (reason.clone(), Role::Plain),
            (message.clone(), Role::Plain),
        ]);
    }
    text += &table.render(style);
    let mut table = Table::with_heading(2, &["REVISION", "STATE", "BUNDLE", "VERSION", "PIN"]);
    for revision in it.revisions.iter().rev() {
        table.row([
            (revision.number.to_string(), Role::Plain),
            (format!("{:?}", revision.state).to_lowercase(), Role::Plain),
            (revision.bundle.clone().unwrap_or_else(|| revision.source.text()), Role::Plain),
            (revision.version.clone().unwrap_or_default(), Role::Plain),
            (revision.pin.clone(), Role::Faint),
        ]);
    }
    text + &table.render(style)
}
