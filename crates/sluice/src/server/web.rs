//! The web view, from the command line: links that sign in to it.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use serde_json::json;
use sluice_api::client::{Client, NoUrl, ServerUrl};
use sluice_api::session::SignInLink;

use super::login;
use crate::cli::WebArgs;
use crate::moment::Moment;

/// `sluice web`.
pub(crate) fn web(arguments: &WebArgs) -> Result<ExitCode> {
    let (link, until) = link(&super::client(&arguments.at)?)?;
    println!("{link}");
    eprintln!("sluice: it signs you in once, until {until}");
    if arguments.open {
        login::open(&link);
    }
    Ok(ExitCode::SUCCESS)
}

/// A link that signs in as the holder of the client's token, and until when it can be used.
pub(crate) fn link(client: &Client) -> Result<(String, Moment)> {
    let made: SignInLink = client.post("/sign-in-links", &json!({}))?;
    let url: ServerUrl =
        client.server().parse().map_err(|NoUrl| anyhow!("{} is no URL of a server", client.server()))?;
    Ok((format!("{}{}", url.base, made.path), Moment::from_ms(made.until_ms)))
}
