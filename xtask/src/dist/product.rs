//! What packages contain: stripped release binaries, and what they need from the system.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::elf::{Glibc, Requirements};
use super::tree::Tree;
use super::{notices, units};
use crate::{node, process};

/// The glibc that the documents state as required. Binaries that need a newer one are not packaged.
pub const GLIBC_STATED: Glibc = Glibc { major: 2, minor: 34 };

/// The client libraries as cargo builds them, and as an installation names them.
const LIBRARIES: [(&str, &str); 7] = [
    ("libsluice_client.so", "libcuda.so.1"),
    ("libsluice_nvml.so", "libnvidia-ml.so.1"),
    ("libsluice_nojitlink.so", "libsluice-nojitlink.so"),
    ("libsluice_devfiles.so", "libsluice-devfiles.so"),
    ("libsluice_blas.so", "libsluice-blas.so"),
    ("libsluice_rand.so", "libsluice-rand.so"),
    ("libsluice_fft.so", "libsluice-fft.so"),
];

/// The software GPU as a `libcuda.so.1` of its own, and the folder that it has beside the client
/// libraries.
const SOFTWARE_GPU: (&str, &str) = ("libsluice_softgpu_cuda.so", "software/libcuda.so.1");

/// What cargo builds beside the default members.
pub(crate) const ALSO_BUILT: [&str; 2] = ["sluice-softgpu-lib", KUBERNETES];

/// The webhook and controller, which only the container image has.
const KUBERNETES: &str = "sluice-kubernetes";

/// The built product.
pub(crate) struct Product {
    pub(crate) version: &'static str,
    /// Of the commit that was built, in seconds since 1970.
    pub(crate) time_s: u64,
    sluice: PathBuf,
    kubernetes: PathBuf,
    /// Each with its name in an installation.
    libraries: Vec<(PathBuf, &'static str)>,
    pub(crate) requirements: Requirements,
    notices: String,
}

impl Product {
    /// Builds, strips and measures.
    pub(crate) fn build(work: &Path) -> Result<Product> {
        node::build_also(&ALSO_BUILT)?;
        let release = crate::target_folder().join("release");
        let folder = work.join("stripped");
        std::fs::create_dir_all(&folder)?;
        let sluice = folder.join("sluice");
        strip(&["--strip-all"], &release.join("sluice"), &sluice)?;
        let kubernetes = folder.join(KUBERNETES);
        strip(&["--strip-all"], &release.join(KUBERNETES), &kubernetes)?;
        let mut libraries = Vec::new();
        for (built, name) in LIBRARIES.into_iter().chain([SOFTWARE_GPU]) {
            let stripped = folder.join(built);
            strip(&["--strip-unneeded"], &release.join(built), &stripped)?;
            libraries.push((stripped, name));
        }
        let mut requirements = Requirements::of(&sluice)?;
        requirements.add(Requirements::of(&kubernetes)?);
        for (library, _) in &libraries {
            requirements.add(Requirements::of(library)?);
        }
        ensure!(
            requirements.glibc <= GLIBC_STATED,
            "the binaries need glibc {}, and the documents state {GLIBC_STATED}: build on an older system, or state the \
             newer one",
            requirements.glibc
        );
        Ok(Product {
            version: env!("CARGO_PKG_VERSION"),
            time_s: commit_time_s()?,
            sluice,
            kubernetes,
            libraries,
            requirements,
            notices: notices::of_crates()?,
        })
    }

    /// The files of an installation below `prefix`: relative as in a tree, and `root` as programs
    /// will see it.
    pub(crate) fn install(&self, tree: &mut Tree, prefix: &str, root: &str) -> Result<()> {
        tree.file(&format!("{prefix}/bin/sluice"), &self.sluice, 0o755);
        self.install_libraries(tree, &format!("{prefix}/lib/sluice"));
        for (name, text) in units::units(root)? {
            tree.text(&format!("{prefix}/lib/systemd/system/{name}"), text);
        }
        for (shell, path) in [
            ("bash", "share/bash-completion/completions/sluice"),
            ("zsh", "share/zsh/site-functions/_sluice"),
            ("fish", "share/fish/vendor_completions.d/sluice.fish"),
        ] {
            let script = process::output_of(Command::new(&self.sluice).args(["completions", shell]))?;
            tree.text(&format!("{prefix}/{path}"), script);
        }
        let documents = format!("{prefix}/share/doc/sluice");
        let repository = crate::root();
        tree.file(&format!("{documents}/README.md"), &repository.join("README.md"), 0o644);
        self.install_licences(tree, &documents);
        Ok(())
    }

    /// The webhook and controller for Kubernetes.
    pub(crate) fn install_kubernetes(&self, tree: &mut Tree, prefix: &str) {
        tree.file(&format!("{prefix}/bin/{KUBERNETES}"), &self.kubernetes, 0o755);
    }

    /// The client libraries and the software GPU's own library.
    pub(crate) fn install_libraries(&self, tree: &mut Tree, folder: &str) {
        for (library, name) in &self.libraries {
            tree.file(&format!("{folder}/{name}"), library, 0o644);
        }
    }

    /// The licence, and the notices of what is linked in.
    pub(crate) fn install_licences(&self, tree: &mut Tree, folder: &str) {
        tree.file(&format!("{folder}/LICENSE"), &crate::root().join("LICENSE"), 0o644);
        tree.text(&format!("{folder}/THIRD-PARTY-NOTICES.txt"), self.notices.as_str());
    }

    /// The program itself.
    pub(crate) fn sluice(&self) -> &Path {
        &self.sluice
    }
}

fn strip(options: &[&str], from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut strip = Command::new("strip");
    process::run(strip.args(options).arg("-o").arg(to).arg(from))
        .context("strip is part of binutils (on Debian: apt install binutils)")
}

/// The time of the commit, which is that of all files in packages: `SOURCE_DATE_EPOCH`, if it is
/// set (reproducible-builds.org/specs/source-date-epoch).
fn commit_time_s() -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            let mut git = Command::new("git");
            process::output_of(git.args(["log", "-1", "--format=%ct"]).current_dir(crate::root()))
                .context("the commit's time; without git, set SOURCE_DATE_EPOCH")?
        }
    };
    text.trim().parse().with_context(|| format!("a time in seconds, not {:?}", text.trim()))
}
