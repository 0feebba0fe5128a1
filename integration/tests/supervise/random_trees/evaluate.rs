//! Evaluates a completed tree with a recursive interpreter of the rules of trees. The interpreter takes the exit of
//! each process from the container, and computes the required results of the actions above.
//!
//! Times are read and not predicted, because a process may exit before or after a timeout. An action may be cancelled
//! only if something could cancel it. A process that hangs exits only if it is signalled, so if a timeout or
//! cancellation is missing, the test hangs.

use std::collections::BTreeMap;

use executor_proto::v1::step::State;
use executor_proto::v1::{Container, Step, exit_status};

use crate::random_trees::grow::{Leaf, LeafEnd, Node, Tree};

/// Result that an action of a tree must have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    NotStarted,
    Succeeded,
    Cancelled,
    /// Failed with this message. A timeout above repeats the message if `reported` is true.
    Failed {
        text: String,
        reported: bool,
    },
}

impl End {
    fn is_error(&self) -> bool {
        matches!(self, Self::Cancelled | Self::Failed { .. })
    }
}

pub(crate) struct Evaluator<'a> {
    steps: BTreeMap<&'a str, &'a Step>,
    /// Numbers of the processes that have written their line.
    lines: Vec<usize>,
}

impl<'a> Evaluator<'a> {
    /// Creates the evaluation of a completed container with this output.
    pub(crate) fn new(container: &'a Container, output: &str) -> Self {
        let steps = container.steps.iter().map(|step| (&*step.path, step)).collect();
        let numbers = output.lines().filter_map(|line| line.strip_prefix("ran ")?.parse().ok());
        Self { steps, lines: numbers.collect() }
    }

    /// Compares all data of the container with the rules.
    ///
    /// # Errors
    /// Returns the first difference if there is one.
    pub(crate) fn evaluate(&self, tree: &Tree, container: &Container) -> Result<(), String> {
        let stopped = tree.stopped_after.is_some();
        let mut ends = Vec::new();
        if let Some(setup) = &tree.setup {
            ends.push(self.node("setup", setup, stopped)?);
        }
        let main = if tree.sidecars.is_empty() {
            self.node("action", &tree.action, stopped)?
        } else {
            let mut parts = vec![("action".to_owned(), &tree.action)];
            let sidecars = tree.sidecars.iter().enumerate();
            parts.extend(sidecars.map(|(index, sidecar)| (format!("sidecars[{index}].action"), sidecar)));
            self.codependent(&parts, stopped, false)?
        };
        ends.push(main);
        let end = self.sequence("the container", &ends, stopped)?;
        let result = container.result.as_ref().ok_or("has no result")?;
        let failure = result.failure.as_ref().map(|failure| failure.message.clone());
        let expected = if let End::Failed { text, .. } = end { Some(text) } else { None };
        if failure != expected {
            return Err(format!("the container's failure is {failure:?} instead of {expected:?}"));
        }
        let exit = result.exit.as_ref();
        let succeeded = exit.is_some_and(|exit| exit.status == Some(exit_status::Status::Code(0)));
        let is_of_a_step = exit.is_some() && container.steps.iter().any(|step| step.exit.as_ref() == exit);
        // A timeout may have expired before a process started. Codependent actions fail although each of them
        // succeeded.
        let is_of_no_process = |text: &String| text.contains("exceeded") || text.contains("Codependent step exited");
        let may_lack = stopped || expected.as_ref().is_some_and(is_of_no_process);
        if !(is_of_a_step || succeeded && expected.is_none() || exit.is_none() && may_lack) {
            return Err(format!("the container's exit status is {exit:?}, which no step has"));
        }
        if expected.is_none() && !stopped && !succeeded {
            return Err(format!("the container's exit status is {exit:?}, although nothing failed"));
        }
        Ok(())
    }

    fn step(&self, path: &str) -> Result<&'a Step, String> {
        self.steps.get(path).copied().ok_or_else(|| format!("{path} is not reported"))
    }

    /// Computes the required result of an action and the actions in it. `cancellable` is true if another action or a
    /// call could cancel it.
    fn node(&self, path: &str, node: &Node, cancellable: bool) -> Result<End, String> {
        let (kind, end) = match node {
            Node::Run(leaf) => ("run", self.leaf(path, leaf, cancellable)?),
            Node::Serial(nodes) => {
                let path = format!("{path}.serial");
                let ends = self.all(&path, nodes, cancellable)?;
                ("serial", self.sequence(&path, &ends, cancellable)?)
            }
            Node::Parallel(nodes) => {
                let path = format!("{path}.parallel");
                ("parallel", together(&path, self.all(&path, nodes, cancellable)?)?)
            }
            Node::Codependent { parts, fails_on_exit } => {
                let path = |index| format!("{path}.codependent.actions[{index}]");
                let parts: Vec<_> = parts.iter().enumerate().map(|(index, part)| (path(index), part)).collect();
                ("codependent", self.codependent(&parts, cancellable, *fails_on_exit)?)
            }
            Node::Try(node) => {
                let end = self.node(&format!("{path}.try.action"), node, cancellable)?;
                ("try", if end == End::NotStarted { end } else { End::Succeeded })
            }
            Node::Timeout(after, node) => ("timeout", self.timeout(path, *after, node, cancellable)?),
            Node::Progress(node) => {
                ("emit_progress", self.node(&format!("{path}.emit_progress.action"), node, cancellable)?)
            }
        };
        let step = self.step(path)?;
        let state = match &end {
            End::NotStarted => State::Pending,
            End::Succeeded => State::Succeeded,
            End::Cancelled => State::Cancelled,
            End::Failed { .. } => State::Failed,
        };
        if step.kind != kind || step.state() != state {
            return Err(format!("{path} is a {} that {:?}, instead of a {kind} that {end:?}", step.kind, step.state()));
        }
        if let End::Failed { text, .. } = &end
            && step.error != *text
        {
            return Err(format!("the error of {path} is {:?} instead of {text:?}", step.error));
        }
        Ok(end)
    }

    fn all(&self, path: &str, nodes: &[Node], cancellable: bool) -> Result<Vec<End>, String> {
        let nodes = nodes.iter().enumerate();
        nodes.map(|(index, node)| self.node(&format!("{path}.actions[{index}]"), node, cancellable)).collect()
    }

    fn leaf(&self, path: &str, leaf: &Leaf, cancellable: bool) -> Result<End, String> {
        let step = self.step(path)?;
        let lines = self.lines.iter().filter(|number| **number == leaf.number).count();
        let exit = step.exit.as_ref();
        let wrong = |why: &str| Err(format!("{path}, {leaf:?}: {why}: {step:#?}"));
        let end = match (step.state(), leaf.end) {
            (State::Pending, _) => End::NotStarted,
            (State::Succeeded, LeafEnd::Exits(_, 0)) => End::Succeeded,
            (State::Failed, LeafEnd::Exits(_, code)) if code != 0 => {
                End::Failed { text: format!("Exited with status {code}"), reported: true }
            }
            (State::Cancelled, _) if cancellable => End::Cancelled,
            (State::Cancelled, _) => return wrong("no action could cancel the process"),
            _ => return wrong("the exit differs from the exit of the program"),
        };
        match end {
            End::NotStarted if lines > 0 || exit.is_some() => return wrong("the process ran"),
            End::Succeeded | End::Failed { .. } if lines != 1 => return wrong("the process did not write one line"),
            _ if lines > 1 => return wrong("the process ran twice"),
            _ => {}
        }
        let wiped = step.wipe.as_ref().map(|wipe| wipe.verified && wipe.files == 1);
        if leaf.file && exit.is_some() && wiped != Some(true) {
            return wrong("the secret file was not wiped");
        }
        Ok(end)
    }

    /// Evaluates consecutive actions, up to the last action that started.
    fn sequence(&self, path: &str, ends: &[End], cancellable: bool) -> Result<End, String> {
        let begun = ends.iter().take_while(|end| **end != End::NotStarted).count();
        let (ran, rest) = ends.split_at(begun);
        if rest.iter().any(|end| *end != End::NotStarted) {
            return Err(format!("{path} skipped an action: {ends:?}"));
        }
        let Some((last, before)) = ran.split_last() else { return Ok(End::NotStarted) };
        if before.iter().any(End::is_error) {
            return Err(format!("{path} continued after an error: {ends:?}"));
        }
        if !rest.is_empty() && !last.is_error() && !cancellable {
            return Err(format!("{path} did not continue: {ends:?}"));
        }
        Ok(last.clone())
    }

    fn codependent(&self, parts: &[(String, &Node)], cancellable: bool, fails_on_exit: bool) -> Result<End, String> {
        let finished = |path: &str| {
            let time = self.steps.get(path).and_then(|step| step.finished_at);
            time.map(|time| (time.seconds, time.nanos))
        };
        let first = parts.iter().filter_map(|(path, _)| finished(path)).min();
        let mut ends = Vec::new();
        for (path, part) in parts {
            let finished = finished(path);
            ends.push((finished, self.node(path, part, cancellable || finished != first)?));
        }
        ends.sort_by_key(|(finished, _)| *finished);
        let exited = || End::Failed { text: "Codependent step exited".into(), reported: false };
        let ends = ends.into_iter().map(|(_, end)| if end == End::Succeeded && fails_on_exit { exited() } else { end });
        let paths: Vec<&str> = parts.iter().map(|(path, _)| &**path).collect();
        together(&paths.join(", "), ends.collect())
    }

    fn timeout(&self, path: &str, after: i64, node: &Node, cancellable: bool) -> Result<End, String> {
        let exceeded = format!("exceeded {} timeout", if after < 1000 { format!("{after}ms") } else { "1m0s".into() });
        let step = self.step(path)?;
        let expired = step.error.starts_with(&exceeded);
        let end = self.node(&format!("{path}.timeout.action"), node, cancellable || expired)?;
        if !expired {
            return Ok(end);
        }
        let nanos = |time: Option<prost_types::Timestamp>| {
            time.map(|time| time.seconds * 1_000_000_000 + i64::from(time.nanos))
        };
        let took = nanos(step.finished_at).zip(nanos(step.started_at)).map(|(end, start)| end - start);
        if took.is_none_or(|took| took < after * 1_000_000) {
            return Err(format!("{path} expired after {took:?} ns instead of {after} ms"));
        }
        let also = if let End::Failed { text, reported: true } = end { format!("; {text}") } else { String::new() };
        Ok(End::Failed { text: exceeded + &also, reported: true })
    }
}

/// Returns the result of actions that are started together. Their errors are listed in this order.
fn together(path: &str, ends: Vec<End>) -> Result<End, String> {
    let started = ends.iter().filter(|end| **end != End::NotStarted).count();
    if started == 0 {
        return Ok(End::NotStarted);
    }
    if started < ends.len() {
        return Err(format!("{path}: {started} of {} were started", ends.len()));
    }
    let errors: Vec<End> = ends.into_iter().filter(End::is_error).collect();
    if errors.is_empty() {
        return Ok(End::Succeeded);
    }
    let texts = errors.into_iter().filter_map(|end| if let End::Failed { text, .. } = end { Some(text) } else { None });
    let texts: Vec<String> = texts.collect();
    Ok(if texts.is_empty() { End::Cancelled } else { End::Failed { text: texts.join("; "), reported: false } })
}
