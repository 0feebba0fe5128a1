//! Defines the fields of a container that templates of `--format` can use.

use std::time::SystemTime;

use executor_cli_kit::view::quantity;
use executor_client::v1::{Container, State};
use serde_json::Value;

use super::Listed;
use crate::view::{human, json};

impl Listed for Container {
    const FIELDS: &'static [(&'static str, &'static str)] = &[
        ("ID", "ID"),
        ("Names", "NAMES"),
        ("Image", "IMAGE"),
        ("Command", "COMMAND"),
        ("CreatedAt", "CREATED AT"),
        ("RunningFor", "CREATED"),
        ("State", "STATE"),
        ("Status", "STATUS"),
        ("Exit", "EXIT"),
        ("Ports", "PORTS"),
        ("Addresses", "ADDRESSES"),
        ("Networks", "NETWORKS"),
        ("Pod", "POD"),
        ("Labels", "LABELS"),
        ("User", "USER"),
    ];

    fn field(&self, name: &str, now: SystemTime) -> String {
        let empty = Default::default();
        let spec = self.spec.as_ref().unwrap_or(&empty);
        match name {
            "ID" | "Names" => self.id.clone(),
            "Image" => spec.rootfs.clone(),
            "Command" => spec.path.clone(),
            "CreatedAt" => quantity::time(self.created_at.as_ref()),
            "RunningFor" => format!("{} ago", quantity::age(self.created_at.as_ref(), now)),
            "State" => human::state(self.state),
            "Status" => match self.state() {
                State::Running => {
                    let health = human::health(self).map_or(String::new(), |health| format!(" ({health})"));
                    format!("Up {}{health}", quantity::age(self.started_at.as_ref(), now))
                }
                State::Completed => {
                    let ago = quantity::age(self.finished_at.as_ref(), now);
                    format!("Exited ({}) {ago} ago", human::ending(self))
                }
                _ => human::state(self.state),
            },
            "Exit" => human::ending(self),
            "Ports" => human::ports(self),
            "Addresses" => human::addresses(self),
            "Pod" => spec.pod.clone(),
            "Networks" => human::network_name(self),
            "Labels" => human::labels(&spec.labels),
            "User" => spec.user.clone(),
            _ => String::new(),
        }
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.spec.as_ref()?.labels.get(name).map(String::as_str)
    }

    fn document(&self) -> Value {
        serde_json::to_value(json::Container::from(self)).unwrap_or_default()
    }
}
