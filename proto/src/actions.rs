//! The run actions and the URLs of a request, wherever they are in its trees: for whoever reads all of them, or overwrites their secrets.

use crate::v1::{Action, RunAction, RunRequest};

impl RunRequest {
    /// Returns the run action of a request that has no other action: no tree, no setup, no sidecar.
    pub fn single_run(&self) -> Option<&RunAction> {
        if self.setup.is_some() || !self.sidecars.is_empty() {
            return None;
        }
        let Action { download, upload, run, timeout, emit_progress, r#try, parallel, serial, codependent } =
            self.action.as_ref()?;
        let others = [
            download.is_some(),
            upload.is_some(),
            timeout.is_some(),
            emit_progress.is_some(),
            r#try.is_some(),
            parallel.is_some(),
            serial.is_some(),
            codependent.is_some(),
        ];
        run.as_ref().filter(|_| !others.contains(&true))
    }

    /// Returns every run action in the order in which they begin where nothing is cancelled: setup, action, sidecars.
    pub fn runs(&self) -> Vec<&RunAction> {
        self.leaves().into_iter().filter_map(|action| action.run.as_ref()).collect()
    }

    /// Returns the URL of every download and upload, in the order of [`RunRequest::runs`].
    pub fn urls(&self) -> Vec<&str> {
        let leaves = self.leaves().into_iter();
        let url = leaves.filter_map(|Action { download, upload, .. }| {
            let download = download.as_ref().map(|download| &download.from);
            download.or(upload.as_ref().map(|upload| &upload.to))
        });
        url.map(String::as_str).collect()
    }

    /// Returns the actions that have a run, a download or an upload, in the order in which they begin.
    fn leaves(&self) -> Vec<&Action> {
        let sidecars = self.sidecars.iter().filter_map(|sidecar| sidecar.action.as_ref());
        let mut waiting: Vec<&Action> = self.setup.iter().chain(&self.action).chain(sidecars).collect();
        waiting.reverse();
        let mut leaves = Vec::new();
        while let Some(action) = waiting.pop() {
            let Action { download, upload, run, timeout, emit_progress, r#try, parallel, serial, codependent } = action;
            if run.is_some() || download.is_some() || upload.is_some() {
                leaves.push(action);
            }
            let mut below: Vec<&Action> = Vec::new();
            below.extend(timeout.iter().filter_map(|timeout| timeout.action.as_deref()));
            below.extend(emit_progress.iter().filter_map(|progress| progress.action.as_deref()));
            below.extend(r#try.iter().filter_map(|attempt| attempt.action.as_deref()));
            below.extend(parallel.iter().flat_map(|parallel| &parallel.actions));
            below.extend(serial.iter().flat_map(|serial| &serial.actions));
            below.extend(codependent.iter().flat_map(|codependent| &codependent.actions));
            waiting.extend(below.into_iter().rev());
        }
        leaves
    }

    /// Does something with every run action, in the order of [`RunRequest::runs`].
    pub fn for_each_run(&mut self, mut act: impl FnMut(&mut RunAction)) {
        self.for_each_leaf(|action| action.run.iter_mut().for_each(&mut act));
    }

    /// Does something with every URL of a download or an upload.
    pub fn for_each_url(&mut self, mut act: impl FnMut(&mut String)) {
        self.for_each_leaf(|action| {
            action.download.iter_mut().for_each(|download| act(&mut download.from));
            action.upload.iter_mut().for_each(|upload| act(&mut upload.to));
        });
    }

    fn for_each_leaf(&mut self, mut act: impl FnMut(&mut Action)) {
        let sidecars = self.sidecars.iter_mut().filter_map(|sidecar| sidecar.action.as_mut());
        let mut waiting: Vec<&mut Action> = self.setup.iter_mut().chain(&mut self.action).chain(sidecars).collect();
        waiting.reverse();
        while let Some(action) = waiting.pop() {
            act(action);
            let Action { download: _, upload: _, run: _, timeout, emit_progress, r#try, parallel, serial, codependent } =
                action;
            let mut below: Vec<&mut Action> = Vec::new();
            below.extend(timeout.iter_mut().filter_map(|timeout| timeout.action.as_deref_mut()));
            below.extend(emit_progress.iter_mut().filter_map(|progress| progress.action.as_deref_mut()));
            below.extend(r#try.iter_mut().filter_map(|attempt| attempt.action.as_deref_mut()));
            below.extend(parallel.iter_mut().flat_map(|parallel| &mut parallel.actions));
            below.extend(serial.iter_mut().flat_map(|serial| &mut serial.actions));
            below.extend(codependent.iter_mut().flat_map(|codependent| &mut codependent.actions));
            waiting.extend(below.into_iter().rev());
        }
    }
}
