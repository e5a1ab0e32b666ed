//! What a lean build answers where a person would sign in at an identity provider.

use anyhow::{Result, bail};
use sluice_api::client::{Kept, Settings};
use sluice_api::token::Login;

pub(in crate::server) fn sign_in(_: String, _: &Login, _: bool, _: u16) -> Result<Settings> {
    absent()
}

pub(super) fn renew(_: &Kept, _: String) -> Result<(String, Option<String>)> {
    absent()
}

fn absent<T>() -> Result<T> {
    bail!(
        "this build of sluice takes tokens alone and asks no identity provider; \
         `cargo build --release` builds one that does"
    )
}
