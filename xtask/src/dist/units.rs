//! Units of systemd and their settings, from `packaging/`.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// The services, by the names of their units.
const SERVICES: [&str; 2] = ["sluice-node", "sluice-server"];

/// Name and text of each unit of an installation in `root`, such as `/usr`.
pub(crate) fn units(root: &str) -> Result<Vec<(String, String)>> {
    SERVICES.into_iter().map(|service| unit(service, root)).collect()
}

fn unit(service: &str, root: &str) -> Result<(String, String)> {
    let name = format!("{service}.service");
    let path = folder().join("systemd").join(&name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok((name, text.replace("@PREFIX@", root)))
}

/// Name and file of the settings of each service, as `/etc/default` has them.
pub(crate) fn settings() -> [(&'static str, PathBuf); 2] {
    SERVICES.map(|service| (service, folder().join("default").join(service)))
}

/// What packages are made of beside what cargo builds.
pub(crate) fn folder() -> PathBuf {
    crate::root().join("packaging")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_start_the_installed_program_with_the_packaged_settings() {
        for (name, text) in units("/opt/x").unwrap() {
            assert!(!text.contains('@'), "{name}: {text}");
            assert!(text.contains("ExecStart=/opt/x/bin/sluice "), "{name}");
            let settings = format!("EnvironmentFile=-/etc/default/{}", name.trim_end_matches(".service"));
            assert!(text.contains(&settings), "{name}");
        }
        assert!(settings().iter().all(|(_, file)| file.is_file()));
    }
}
