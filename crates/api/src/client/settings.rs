//! Which server `sluice` speaks to, and with which token.
//!
//! The server is `SLUICE_SERVER`, or else `server` of the settings file that `sluice login` writes.
//! The token is `SLUICE_TOKEN`, or the settings file's or the local data folder's, each only for
//! the server that it belongs to: a token is never sent to a server that merely was named.

use std::fs;
use std::io;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Client, NoUrl, ServerUrl};

pub const SERVER_VARIABLE: &str = "SLUICE_SERVER";
const TOKEN_VARIABLE: &str = "SLUICE_TOKEN";

/// A server and a token for it: what `sluice login` keeps for a user, and `sluice up` for its
/// administrator.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// A [`ServerUrl`], or several with commas between.
    pub server: String,
    pub token: String,
    /// How the token is renewed, if an identity provider gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<Kept>,
}

/// What `sluice login` keeps of an identity provider.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    pub issuer: String,
    pub client_id: String,
    /// A provider need not give one; without, the token is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("{}: {cause}", .path.display())]
    File { path: PathBuf, cause: String },
    #[error(
        "{}: it is damaged ({cause}); remove it, and `sluice login` or the start of the server makes it anew",
        .path.display()
    )]
    Damaged { path: PathBuf, cause: String },
    #[error("{}: others can read it, and it holds a token: chmod 600", .0.display())]
    Readable(PathBuf),
    #[error("{0:?} is no URL of a server, such as https://control:7580 or http://127.0.0.1:7580")]
    Url(String),
    #[error(
        "no token for {0}: set SLUICE_TOKEN, or `sluice login {0}` (an administrator makes one with \
         `sluice token create`)"
    )]
    NoToken(String),
    #[error("no folder for settings: neither XDG_CONFIG_HOME nor HOME is set")]
    NoFolder,
}

impl Settings {
    /// What applies here; `None` where no server is named.
    pub fn find(server: Option<&str>) -> Result<Option<Settings>, SettingsError> {
        let login = user_file().map_or(Ok(None), |path| Settings::read(&path))?;
        let named = server.map(str::to_owned).or_else(|| variable(SERVER_VARIABLE));
        let server = match (named, &login) {
            (Some(server), _) => canonical(&server)?,
            (None, Some(login)) => return Ok(Some(login.clone())),
            (None, None) => return Ok(None),
        };
        if let Some(token) = variable(TOKEN_VARIABLE) {
            return Ok(Some(Settings { server, token, login: None }));
        }
        let local = data_folder().map_or(Ok(None), |folder| Settings::read(&folder.join(ADMIN_FILE)))?;
        let fitting = [login, local].into_iter().flatten().find(|settings| settings.is_for(&server));
        fitting.map(Some).ok_or(SettingsError::NoToken(server))
    }

    /// Writes them as the user's own.
    pub fn keep(&self) -> Result<PathBuf, SettingsError> {
        let path = user_file().ok_or(SettingsError::NoFolder)?;
        self.write(&path)?;
        Ok(path)
    }

    /// Removes what [`Settings::keep`] wrote, and gives it back; none where nothing is kept.
    pub fn forget() -> Result<Option<Settings>, SettingsError> {
        let Some(path) = user_file() else { return Ok(None) };
        let known = Settings::read(&path)?;
        if known.is_some() {
            let failed =
                |error: io::Error| SettingsError::File { path: path.clone(), cause: error.to_string() };
            fs::remove_file(&path).map_err(failed)?;
        }
        Ok(known)
    }

    /// Writes a file that only this user can read.
    pub fn write(&self, path: &Path) -> Result<(), SettingsError> {
        let failed = |error: io::Error| SettingsError::File { path: path.into(), cause: error.to_string() };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let temporary = path.with_extension("new");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(failed)?;
        // The mode above holds for a new file only.
        file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        file.write_all(text.as_bytes()).map_err(failed)?;
        fs::rename(&temporary, path).map_err(failed)
    }

    /// The settings in a file, if it is there; a file that others can read is refused.
    pub fn read(path: &Path) -> Result<Option<Settings>, SettingsError> {
        let failed = |cause: String| SettingsError::File { path: path.into(), cause };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
        };
        let mode = fs::metadata(path).map_err(|error| failed(error.to_string()))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(SettingsError::Readable(path.into()));
        }
        let damaged =
            |error: serde_json::Error| SettingsError::Damaged { path: path.into(), cause: error.to_string() };
        serde_json::from_str(&text).map(Some).map_err(damaged)
    }

    /// Whether all these servers are of the control plane that the token belongs to.
    fn is_for(&self, servers: &str) -> bool {
        servers.split(',').all(|server| self.server.split(',').any(|own| own == server))
    }

    pub fn client(&self) -> Client {
        Client::new(&self.server, &self.token)
    }
}

/// The file in a server's data folder that holds its administrator's settings.
pub const ADMIN_FILE: &str = "admin.json";
/// The file with the administrator's settings for the node of `sluice up`.
pub const NODE_FILE: &str = "node.json";

/// A [`ServerUrl`], or several of them with commas between: the servers of one control plane.
pub fn canonical(servers: &str) -> Result<String, SettingsError> {
    let urls: Result<Vec<String>, SettingsError> = servers.split(',').map(canonical_url).collect();
    urls.map(|urls| urls.join(","))
}

fn canonical_url(server: &str) -> Result<String, SettingsError> {
    let url = server.parse::<ServerUrl>().map_err(|NoUrl| SettingsError::Url(server.into()))?;
    Ok(url.to_string())
}

/// `$XDG_CONFIG_HOME/sluice/config.json`, or the same under the home directory's `.config`.
pub fn user_file() -> Option<PathBuf> {
    Some(folder("XDG_CONFIG_HOME", ".config")?.join("config.json"))
}

/// Where a server keeps its data by default: `$XDG_DATA_HOME/sluice`, or the same under
/// `.local/share`.
pub fn data_folder() -> Option<PathBuf> {
    folder("XDG_DATA_HOME", ".local/share")
}

fn folder(name: &str, under_home: &str) -> Option<PathBuf> {
    let folder = match variable(name) {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(variable("HOME")?).join(under_home),
    };
    folder.is_absolute().then(|| folder.join("sluice"))
}

pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_one_form() {
        for text in ["http://control:7580", "http://control:7580/"] {
            assert_eq!(canonical(text).unwrap(), "http://control:7580");
        }
        assert_eq!(canonical("http://a:1/, http://b:2").unwrap(), "http://a:1,http://b:2");
        assert_eq!(canonical("https://control/").unwrap(), "https://control");
        for text in ["http://a,", "", "control:7580", "http://", "http://a/b", "http://a@b"] {
            assert!(canonical(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_is_for_its_own_servers() {
        let settings = Settings { server: "http://a:1,http://b:2".into(), token: "t".into(), login: None };
        assert!(settings.is_for("http://b:2") && settings.is_for("http://b:2,http://a:1"));
        assert!(!settings.is_for("http://b:2,http://c:3"));
    }

    #[test]
    fn a_file_with_a_token_is_the_users_alone() {
        let path = std::env::temp_dir().join(format!("sluice-settings-{}/config.json", std::process::id()));
        let settings = Settings { server: "http://a:1".into(), token: "t".into(), login: None };
        settings.write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Settings::read(&path).unwrap().map(|s| s.token), Some("t".into()));
        fs::write(&path, "{\"server\": \"http").unwrap();
        let damaged = Settings::read(&path).err().unwrap();
        assert!(matches!(damaged, SettingsError::Damaged { .. }));
        assert!(damaged.to_string().contains("remove it, and `sluice login`"), "{damaged}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Settings::read(&path), Err(SettingsError::Readable(_))));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
