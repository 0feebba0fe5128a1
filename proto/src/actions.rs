//! The action tree of a request: kinds that are set, child actions, and all run actions and URLs.

use crate::v1::{Action, RunAction, RunRequest};

impl Action {
    /// Returns the names of the kinds that are set: exactly one if the action is valid.
    pub fn kinds(&self) -> Vec<&'static str> {
        let Self { download, upload, run, timeout, emit_progress, r#try, parallel, serial, codependent } = self;
        let all = [
            ("download", download.is_some()),
            ("upload", upload.is_some()),
            ("run", run.is_some()),
            ("timeout", timeout.is_some()),
            ("emit_progress", emit_progress.is_some()),
            ("try", r#try.is_some()),
            ("parallel", parallel.is_some()),
            ("serial", serial.is_some()),
            ("codependent", codependent.is_some()),
        ];
        all.into_iter().filter_map(|(kind, is_set)| is_set.then_some(kind)).collect()
    }

    /// Returns the direct child actions, each with its path relative to this action: `.serial.actions[0]`.
    pub fn below(&self) -> Vec<(String, &Self)> {
        let Self { download: _, upload: _, run: _, timeout, emit_progress, r#try, parallel, serial, codependent } =
            self;
        let singles = [
            ("timeout", timeout.as_ref().and_then(|timeout| timeout.action.as_deref())),
            ("emit_progress", emit_progress.as_ref().and_then(|progress| progress.action.as_deref())),
            ("try", r#try.as_ref().and_then(|attempt| attempt.action.as_deref())),
        ];
        let lists = [
            ("parallel", parallel.as_ref().map(|list| &list.actions)),
            ("serial", serial.as_ref().map(|list| &list.actions)),
            ("codependent", codependent.as_ref().map(|list| &list.actions)),
        ];
        let singles = singles.into_iter().filter_map(|(kind, action)| Some((format!(".{kind}.action"), action?)));
        let lists = lists.into_iter().flat_map(|(kind, list)| {
            let list = list.into_iter().flatten().enumerate();
            list.map(move |(index, action)| (format!(".{kind}.actions[{index}]"), action))
        });
        singles.chain(lists).collect()
    }

    /// Calls `act` for every run action in this tree, in the order in which they start.
    pub fn for_each_run(&mut self, mut act: impl FnMut(&mut RunAction)) {
        self.for_each(&mut |action| action.run.iter_mut().for_each(&mut act));
    }

    /// Calls `act` for this action and every action below it.
    fn for_each(&mut self, act: &mut impl FnMut(&mut Self)) {
        let mut stack = vec![self];
        while let Some(action) = stack.pop() {
            act(action);
            let Self { download: _, upload: _, run: _, timeout, emit_progress, r#try, parallel, serial, codependent } =
                action;
            let mut below: Vec<&mut Self> = Vec::new();
            below.extend(timeout.iter_mut().filter_map(|timeout| timeout.action.as_deref_mut()));
            below.extend(emit_progress.iter_mut().filter_map(|progress| progress.action.as_deref_mut()));
            below.extend(r#try.iter_mut().filter_map(|attempt| attempt.action.as_deref_mut()));
            below.extend(parallel.iter_mut().flat_map(|parallel| &mut parallel.actions));
            below.extend(serial.iter_mut().flat_map(|serial| &mut serial.actions));
            below.extend(codependent.iter_mut().flat_map(|codependent| &mut codependent.actions));
            stack.extend(below.into_iter().rev());
        }
    }
}

impl RunRequest {
    /// Returns the run action of a request that has no other action: no tree, no setup, no sidecar.
    pub fn single_run(&self) -> Option<&RunAction> {
        let action = self.action.as_ref().filter(|_| self.setup.is_none() && self.sidecars.is_empty())?;
        action.run.as_ref().filter(|_| action.kinds() == ["run"])
    }

    /// Returns every run action in the order in which they start if none is cancelled: setup, action, sidecars.
    pub fn runs(&self) -> Vec<&RunAction> {
        self.actions().into_iter().filter_map(|action| action.run.as_ref()).collect()
    }

    /// Returns the URL of every download and upload, in the order of [`RunRequest::runs`].
    pub fn urls(&self) -> Vec<&str> {
        let all = self.actions().into_iter();
        all.filter_map(|Action { download, upload, .. }| {
            let download = download.as_ref().map(|download| &*download.from);
            download.or_else(|| upload.as_ref().map(|upload| &*upload.to))
        })
        .collect()
    }

    /// Returns every action; parents come before their children.
    fn actions(&self) -> Vec<&Action> {
        let sidecars = self.sidecars.iter().filter_map(|sidecar| sidecar.action.as_ref());
        let mut stack: Vec<&Action> = self.setup.iter().chain(&self.action).chain(sidecars).collect();
        stack.reverse();
        let mut all = Vec::new();
        while let Some(action) = stack.pop() {
            all.push(action);
            stack.extend(action.below().into_iter().rev().map(|(_, action)| action));
        }
        all
    }

    /// Calls `act` for every run action, in the order of [`RunRequest::runs`].
    pub fn for_each_run(&mut self, mut act: impl FnMut(&mut RunAction)) {
        self.for_each_action(&mut |action| action.run.iter_mut().for_each(&mut act));
    }

    /// Calls `act` for the URL of every download and upload.
    pub fn for_each_url(&mut self, mut act: impl FnMut(&mut String)) {
        self.for_each_action(&mut |action| {
            action.download.iter_mut().for_each(|download| act(&mut download.from));
            action.upload.iter_mut().for_each(|upload| act(&mut upload.to));
        });
    }

    fn for_each_action(&mut self, act: &mut impl FnMut(&mut Action)) {
        let sidecars = self.sidecars.iter_mut().filter_map(|sidecar| sidecar.action.as_mut());
        self.setup.iter_mut().chain(&mut self.action).chain(sidecars).for_each(|action| action.for_each(act));
    }
}
