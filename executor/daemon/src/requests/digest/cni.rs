//! Hashes the settings of a pod for CNI plugins, as part of the digest of the pod request.

use executor_proto::v1::{CniArgument, CniBandwidth, CniOptions};

use super::DigestParts;

impl<'a> DigestParts<'a> {
    pub(super) fn cni(&mut self, options: Option<&'a CniOptions>) {
        let Some(CniOptions { arguments, bandwidth, cgroup_path, pod_annotations }) = options else {
            return self.numbers(&[]);
        };
        self.numbers(&[arguments.len() as u64]);
        for CniArgument { name, value } in arguments {
            self.text(name);
            self.text(value);
        }
        match bandwidth {
            None => self.numbers(&[]),
            Some(CniBandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }) => {
                self.numbers(&[*ingress_rate, *ingress_burst, *egress_rate, *egress_burst]);
            }
        }
        self.text(cgroup_path);
        self.map(pod_annotations);
    }
}

#[cfg(test)]
mod tests {
    use executor_proto::v1::CreatePodRequest;
    use executor_secrets::TagKey;

    use super::super::pod_digest;
    use super::*;

    #[test]
    fn every_cni_option_counts() {
        let changes: [fn(&mut CniOptions); 9] = [
            |_| (),
            |cni| cni.arguments.push(CniArgument::default()),
            |cni| cni.arguments.push(CniArgument { name: "a".into(), ..Default::default() }),
            |cni| cni.arguments.push(CniArgument { value: "a".into(), ..Default::default() }),
            |cni| cni.bandwidth = Some(CniBandwidth::default()),
            |cni| cni.bandwidth = Some(CniBandwidth { ingress_rate: 1, ..Default::default() }),
            |cni| cni.bandwidth = Some(CniBandwidth { egress_burst: 1, ..Default::default() }),
            |cni| cni.cgroup_path = "a".into(),
            |cni| drop(cni.pod_annotations.insert("a".into(), "b".into())),
        ];
        let key = TagKey::random().unwrap();
        let tag = |cni| pod_digest(&key, &CreatePodRequest { cni, ..Default::default() });
        let changed = changes.iter().map(|change| {
            let mut options = CniOptions::default();
            change(&mut options);
            tag(Some(options))
        });
        let tags: Vec<String> = changed.chain([tag(None)]).collect();
        for (index, tag) in tags.iter().enumerate() {
            assert_eq!(tags.iter().filter(|other| *other == tag).count(), 1, "change {index}");
        }
    }
}
