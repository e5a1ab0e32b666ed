//! Programs that are built with Go, kept outside of the checkout and keyed by their version.

use std::path::PathBuf;

use anyhow::Result;

use crate::Skipped;

/// What is built of one version of a project.
pub(super) struct Release {
    name: &'static str,
    version: &'static str,
    /// The folder of the module that names the version, in the root of the checkout.
    module: &'static str,
    /// Where the build writes the version into its programs.
    variable: &'static str,
}

/// As in `tests/kubernetes/go.mod`.
pub(super) const KUBERNETES: Release = Release {
    name: "kubernetes",
    version: "1.37.2",
    module: "tests/kubernetes",
    variable: "k8s.io/component-base/version.gitVersion=v",
};
/// As in `tests/kubernetes/containerd/go.mod`. Debian's containerd is too old for devices of
/// claims (CDI).
pub(super) const CONTAINERD: Release = Release {
    name: "containerd",
    version: "2.3.7",
    module: "tests/kubernetes/containerd",
    variable: "github.com/containerd/containerd/v2/version.Version=",
};

impl Release {
    /// The folder of its programs, given with their packages. A build takes many minutes, so the
    /// test makes none.
    pub(super) fn programs(&self, wanted: &[(&str, &str)]) -> Result<PathBuf> {
        let Release { name, version, module, variable } = self;
        let folder = crate::cache_folder().join(format!("{name}-{version}"));
        for (program, package) in wanted {
            if !folder.join(program).is_file() {
                let reason = format!(
                    "needs {program} of {name} {version}: in {module}, CGO_ENABLED=0 go build -trimpath \
                     -ldflags '-s -w -X {variable}{version}' -o {} {package}",
                    folder.join(program).display()
                );
                return Err(Skipped(reason).into());
            }
        }
        Ok(folder)
    }
}
