//! How the workers of a node on this machine would be confined: a process of this program confines
//! itself as they are, and says what that has come to.

use std::path::Path;
use std::process::{Command, Stdio};

use sluice_worker::sandbox::{ARGUMENT, Confinement};

use super::Finding;

const PAGE: &str = "docs/isolation.md says what that means";

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![match measured() {
        Ok(confinement) => finding(&confinement),
        Err(error) => Finding::problem(
            format!("workers of a software GPU cannot be confined here, and do not start: {error}"),
            "a node needs Linux with seccomp",
        ),
    }];
    if Path::new("/dev/nvidiactl").exists() {
        findings.push(Finding::note(
            "workers of NVIDIA's driver are not confined",
            format!("lend to people who trust each other, or run the node in a container; {PAGE}"),
        ));
    }
    findings
}

fn measured() -> Result<Confinement, String> {
    let mut command = Command::new("/proc/self/exe");
    let output = command.args(["worker", ARGUMENT, "null"]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    serde_json::from_slice(&output.stdout)
        .map_err(|_| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn finding(confinement: &Confinement) -> Finding {
    let jail = confinement.jail;
    let parts = [
        (jail.own_user, "a user of their own", "a node run by root gives it"),
        (jail.user_namespace, "a user namespace", "this kernel lets only root make one"),
        (jail.other_namespaces, "mount, network and IPC namespaces", "root or a user namespace gives them"),
        (jail.empty_root, "an empty file system", "a mount namespace gives it"),
        (jail.no_capabilities, "no capabilities", "they could not be given up"),
        (confinement.landlock, "Landlock", "this kernel has none"),
        (confinement.seccomp, "a filter of system calls", "this kernel has none"),
    ];
    let listed = |wanted: bool| {
        let parts = parts.iter().filter(move |(is_there, ..)| *is_there == wanted);
        parts.map(move |&(_, what, why)| if wanted { what.to_owned() } else { format!("{what} ({why})") })
    };
    let has = listed(true).collect::<Vec<_>>().join(", ");
    let lacks = listed(false).collect::<Vec<_>>().join("; ");
    match lacks.as_str() {
        "" => Finding::ok(format!("workers of a software GPU have {has}")),
        _ => Finding::note(format!("workers of a software GPU have {has}; they do not have {lacks}"), PAGE),
    }
}

#[cfg(test)]
mod tests {
    use sluice_worker::sandbox::Jail;

    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn what_is_missing_is_named() {
        let whole = Jail {
            own_user: true,
            user_namespace: true,
            pid_namespace: true,
            other_namespaces: true,
            empty_root: true,
            no_capabilities: true,
        };
        let all = Confinement { jail: whole, landlock: true, seccomp: true };
        assert_eq!(finding(&all).verdict, Verdict::Ok);
        let without_root = Confinement { jail: Jail { own_user: false, ..whole }, landlock: false, ..all };
        let finding = finding(&without_root);
        assert_eq!(finding.verdict, Verdict::Note);
        let lacks = "they do not have a user of their own (a node run by root gives it); Landlock (this kernel has none)";
        assert!(finding.text.ends_with(lacks), "{}", finding.text);
    }
}
