//! The run actions of a request, wherever they are in its trees: for whoever reads all of them, or overwrites their secrets.

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
        let sidecars = self.sidecars.iter().filter_map(|sidecar| sidecar.action.as_ref());
        let mut waiting: Vec<&Action> = self.setup.iter().chain(&self.action).chain(sidecars).collect();
        waiting.reverse();
        let mut runs = Vec::new();
        while let Some(action) = waiting.pop() {
            let Action { download: _, upload: _, run, timeout, emit_progress, r#try, parallel, serial, codependent } =
                action;
            runs.extend(run);
            let mut below: Vec<&Action> = Vec::new();
            below.extend(timeout.iter().filter_map(|timeout| timeout.action.as_deref()));
            below.extend(emit_progress.iter().filter_map(|progress| progress.action.as_deref()));
            below.extend(r#try.iter().filter_map(|attempt| attempt.action.as_deref()));
            below.extend(parallel.iter().flat_map(|parallel| &parallel.actions));
            below.extend(serial.iter().flat_map(|serial| &serial.actions));
            below.extend(codependent.iter().flat_map(|codependent| &codependent.actions));
            waiting.extend(below.into_iter().rev());
        }
        runs
    }

    /// Does something with every run action, in the order of [`RunRequest::runs`].
    pub fn for_each_run(&mut self, mut act: impl FnMut(&mut RunAction)) {
        let sidecars = self.sidecars.iter_mut().filter_map(|sidecar| sidecar.action.as_mut());
        self.setup.iter_mut().chain(&mut self.action).chain(sidecars).for_each(|action| action.for_each_run(&mut act));
    }
}

impl Action {
    /// Does something with every run action in it.
    pub fn for_each_run(&mut self, mut act: impl FnMut(&mut RunAction)) {
        let mut waiting = vec![self];
        while let Some(action) = waiting.pop() {
            let Action { download: _, upload: _, run, timeout, emit_progress, r#try, parallel, serial, codependent } =
                action;
            run.iter_mut().for_each(&mut act);
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
