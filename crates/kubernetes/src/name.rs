//! The names of leases that belong to pods: by them a restarted controller knows whose they are.

use std::fmt;

/// Characters of a pod's name in a lease's name, which has 256: the rest takes 137 at most.
const POD_MAX: usize = 110;

/// `NAMESPACE/POD UID@CLUSTER`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseName<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) uid: &'a str,
    pub(crate) cluster: &'a str,
}

impl fmt::Display for LeaseName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod: String = self.pod.chars().take(POD_MAX).collect();
        write!(f, "{}/{pod} {}@{}", self.namespace, self.uid, self.cluster)
    }
}

impl LeaseName<'_> {
    pub(crate) fn parse(text: &str) -> Option<LeaseName<'_>> {
        let (place, owner) = text.split_once(' ')?;
        let (namespace, pod) = place.split_once('/')?;
        let (uid, cluster) = owner.split_once('@')?;
        (!uid.is_empty()).then_some(LeaseName { namespace, pod, uid, cluster })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        let name = LeaseName { namespace: "red", pod: "train-0", uid: "6e1b", cluster: "a1b2" };
        assert_eq!(LeaseName::parse(&name.to_string()), Some(name));
        for other in ["python3 train.py", "sluice bench", "a/b c"] {
            assert_eq!(LeaseName::parse(other), None, "{other}");
        }
        let (namespace, pod) = ("n".repeat(63), "p".repeat(253));
        let uid = "6e1b4d0a-6a53-4f0f-9a51-0f1c8f0f1c8f";
        let longest = LeaseName { namespace: &namespace, pod: &pod, uid, cluster: uid }.to_string();
        assert!(longest.len() <= 256 && LeaseName::parse(&longest).unwrap().cluster == uid, "{longest}");
    }
}
