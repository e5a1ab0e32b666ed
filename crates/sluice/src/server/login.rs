//! `sluice login`, and the client with what it keeps.

#[cfg(feature = "full")]
mod provider;
#[cfg(not(feature = "full"))]
#[path = "login/no_provider.rs"]
mod provider;

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sluice_api::client::{Client, Failure, Kept, Settings, user_file};
use sluice_api::problem::Kind;
use sluice_api::token::Login;

use crate::output::with_causes;

pub(super) use provider::sign_in;

/// The provider whose tokens a server takes; none if it takes its own only.
pub(super) fn provider_of(server: &str) -> Result<Option<Login>> {
    match Client::new(server, "").get("/login") {
        Ok(login) => Ok(Some(login)),
        Err(Failure::Refused(problem)) if problem.is(Kind::NotFound) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// Whatever opens pages here; a person can do it as well.
pub(super) fn open(url: &str) {
    let program =
        std::env::var_os("BROWSER").filter(|name| !name.is_empty()).unwrap_or_else(|| "xdg-open".into());
    let mut command = Command::new(program);
    let _ = command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
}

/// A client with the kept token, which is renewed when it has expired, or replaced by what
/// `sluice login` has kept since.
pub(super) fn client(settings: Settings) -> Client {
    let client = settings.client();
    if settings.login.as_ref().is_none_or(|kept| kept.refresh_token.is_none()) {
        return client.renewing(move || Some(Settings::find(Some(&settings.server)).ok()??.token));
    }
    client.renewing(move || match renewed(&settings) {
        Ok(token) => token,
        Err(error) => {
            eprintln!("sluice: {}; `sluice login` signs in again", with_causes(&error));
            None
        }
    })
}

/// Another token than the one that is known: what another process has got meanwhile, or a new one.
/// Refresh tokens count once, so one process at a time asks.
fn renewed(known: &Settings) -> Result<Option<String>> {
    let path = user_file().context("no folder for settings")?;
    let lock = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path.with_extension("lock"))?;
    lock.lock()?;
    let Some(kept) = Settings::read(&path)? else { return Ok(None) };
    if kept.server != known.server {
        bail!("{} is for another server now", path.display());
    }
    if still_holds(&kept.token) {
        return Ok(Some(kept.token));
    }
    let Some(login) = kept.login.clone() else { return Ok(None) };
    let Some(refresh) = login.refresh_token.clone() else { return Ok(None) };
    let (token, refresh_token) = provider::renew(&login, refresh)?;
    let refresh_token = refresh_token.or(login.refresh_token);
    let new = Settings { server: kept.server, token, login: Some(Kept { refresh_token, ..login }) };
    new.write(&path)?;
    Ok(Some(new.token))
}

/// Whether a token says of itself that it has not expired yet.
fn still_holds(token: &str) -> bool {
    let expires = || -> Option<u64> {
        use base64::Engine;
        let payload =
            base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
        serde_json::from_slice::<serde_json::Value>(&payload).ok()?["exp"].as_u64()
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    expires().is_some_and(|at_s| at_s > now.as_secs())
}
