//! `sluice iq --consent` and its like: what the server may change by itself, and undoing that.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use sluice_api::autonomy::{
    Autonomy, Consent, LeftAlone, NewConsent, ProgramName, ProgramSize, TenantAutonomy, Undone,
};
use sluice_api::client::Client;
use sluice_api::lease::Lease;
use sluice_api::tenant::TenantPath;
use sluice_api::token::Token;

use super::lists::show;
use crate::cli::{IdleAfter, IqArgs, Output};
use crate::moment::Moment;
use crate::quantity::{Memory, Period};
use crate::run::share_text;
use crate::table::Align::{Left, Right};

/// Says what a tenant lets the server change.
pub(super) fn consent(client: &Client, arguments: &IqArgs) -> Result<ExitCode> {
    let tenant = match &arguments.tenant {
        Some(tenant) => tenant.clone(),
        None => client.get::<Token>("/whoami")?.tenant,
    };
    let new = NewConsent {
        tenant,
        mode: arguments.consent,
        floor_percent: arguments.floor.map(|floor| floor.ppm().div_ceil(10_000)),
        idle_after_ms: arguments.idle_after.map(IdleAfter::ms),
    };
    let set: Consent = client.post("/autonomy", &new)?;
    eprintln!("sluice: {} has consented to: {}", set.tenant, consent_text(&set));
    let found: Autonomy = client.get(&format!("/autonomy?tenant={}", set.tenant))?;
    let in_force = found.tenants.iter().find(|other| other.tenant == set.tenant);
    if let Some(bound) = in_force.filter(|in_force| in_force.mode != set.mode) {
        eprintln!("sluice: in force is {}: {}", bound.mode.name(), bound.because);
    }
    Ok(ExitCode::SUCCESS)
}

/// `live, shares not below 25% of what was asked for, idle programs suspended after 30min`
fn consent_text(consent: &Consent) -> String {
    let mut words = vec![consent.mode.name().to_owned()];
    words.push(format!("shares not below {}% of what was asked for", consent.floor_percent));
    words.extend(consent.idle_after_ms.map(|ms| format!("idle programs suspended after {}", period(ms))));
    words.join(", ")
}

fn period(ms: u64) -> Period {
    Period::from_duration(Duration::from_millis(ms))
}

/// Prints who has consented to what, and what came of it.
pub(super) fn list(client: &Client, arguments: &IqArgs) -> Result<ExitCode> {
    let found = autonomy(client, arguments.tenant.as_ref())?;
    if arguments.output == Output::Json {
        println!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(ExitCode::SUCCESS);
    }
    let columns = &[
        ("TENANT", Left),
        ("CONSENT", Left),
        ("IN FORCE", Left),
        ("FLOOR", Right),
        ("IDLE AFTER", Right),
        ("BECAUSE", Left),
    ];
    show(&found.tenants, Output::Table, "there is no tenant that this token may see", columns, tenant_cells)?;
    if !found.programs.is_empty() {
        println!();
        let columns =
            &[("PROGRAM", Left), ("TENANT", Left), ("NEXT RUNS", Left), ("SINCE", Left), ("WHY", Left)];
        show(&found.programs, Output::Table, "", columns, size_cells)?;
    }
    if !found.left_alone.is_empty() {
        println!();
        let columns = &[("LEFT ALONE", Left), ("TENANT", Left), ("SINCE", Left), ("BY", Left)];
        show(&found.left_alone, Output::Table, "", columns, left_alone_cells)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn tenant_cells(tenant: &TenantAutonomy) -> Vec<String> {
    let consent = tenant.consent.as_ref();
    vec![
        tenant.tenant.to_string(),
        consent.map_or_else(|| "-".to_owned(), |consent| consent.mode.name().to_owned()),
        tenant.mode.name().to_owned(),
        consent.map_or_else(String::new, |consent| format!("{}%", consent.floor_percent)),
        consent
            .and_then(|consent| consent.idle_after_ms)
            .map_or_else(String::new, |ms| period(ms).to_string()),
        tenant.because.clone(),
    ]
}

fn size_cells(size: &ProgramSize) -> Vec<String> {
    let text = |share_ppm, memory| format!("{}, {}", share_text(share_ppm), Memory::from_bytes(memory));
    let asked = text(size.asked_share_ppm, size.asked_memory);
    vec![
        size.program.clone(),
        size.tenant.to_string(),
        format!("{} (asked: {asked})", text(size.share_ppm, size.memory)),
        Moment::from_ms(size.set_at_ms).to_string(),
        size.why.clone(),
    ]
}

fn left_alone_cells(left: &LeftAlone) -> Vec<String> {
    let since = Moment::from_ms(left.set_at_ms).to_string();
    vec![left.program.clone(), left.tenant.to_string(), since, left.set_by.clone()]
}

fn autonomy(client: &Client, tenant: Option<&TenantPath>) -> Result<Autonomy> {
    let of = tenant.map_or_else(String::new, |tenant| format!("?tenant={tenant}"));
    Ok(client.get(&format!("/autonomy{of}"))?)
}

/// The programs that the server has changed and whose name contains this.
pub(super) fn changed(client: &Client, arguments: &IqArgs) -> Result<Vec<ProgramName>> {
    let found = autonomy(client, arguments.tenant.as_ref())?;
    let sizes = found.programs.into_iter();
    let mut names: Vec<ProgramName> =
        sizes.map(|size| ProgramName { tenant: size.tenant, program: size.program }).collect();
    let of = arguments.tenant.as_ref().map_or_else(String::new, |tenant| format!("&tenant={tenant}"));
    let leases: Vec<Lease> = client.list(&format!("/leases?state=open{of}"))?;
    let is_changed = |lease: &Lease| lease.automatic.is_some();
    let leases = leases.into_iter().filter(is_changed);
    names.extend(leases.map(|lease| ProgramName { tenant: lease.tenant, program: lease.name }));
    names.retain(|name| arguments.program.as_ref().is_none_or(|part| name.program.contains(part.as_str())));
    names.sort();
    names.dedup();
    Ok(names)
}

/// Undoes what the server has changed about a program.
pub(super) fn undo(client: &Client, name: &ProgramName) -> Result<()> {
    let undone: Undone = client.post("/autonomy/undo", name)?;
    let leases: Vec<String> = undone.leases.iter().map(u64::to_string).collect();
    let leases = match &leases[..] {
        [] => String::new(),
        [lease] => format!("lease {lease} gets back what it asked for; "),
        _ => format!("leases {} get back what they asked for; ", leases.join(", ")),
    };
    for later in &undone.later {
        eprintln!(
            "sluice: lease {} gets back what it asked for later, not now: {}",
            later.lease, later.reason
        );
    }
    eprintln!(
        "sluice: {leases}{} in {} is left alone from now on; `sluice iq {:?} --allow` ends that",
        name.program, name.tenant, name.program
    );
    Ok(())
}

/// Lets the server change a program again.
pub(super) fn allow(client: &Client, arguments: &IqArgs) -> Result<ExitCode> {
    let mut left = autonomy(client, arguments.tenant.as_ref())?.left_alone;
    left.retain(|left| arguments.program.as_ref().is_none_or(|part| left.program.contains(part.as_str())));
    let [LeftAlone { tenant, program, .. }] = &left[..] else {
        bail!("{}", super::iq::which(left.iter().map(|left| left.program.as_str())))
    };
    let name = ProgramName { tenant: tenant.clone(), program: program.clone() };
    let _: LeftAlone = client.post("/autonomy/allow", &name)?;
    eprintln!("sluice: {program} in {tenant} is changed again, as far as {tenant} has consented");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use sluice_api::autonomy::Mode;

    use super::*;

    #[test]
    fn a_consent_is_said_in_a_line() {
        let unsaid = Consent::unsaid("acme".parse().unwrap());
        assert_eq!(consent_text(&unsaid), "recommend, shares not below 25% of what was asked for");
        let live = Consent { mode: Mode::Live, idle_after_ms: Some(1_800_000), ..unsaid };
        assert!(
            consent_text(&live).ends_with("idle programs suspended after 30 min 0 s"),
            "{}",
            consent_text(&live)
        );
    }

    #[test]
    fn a_size_is_shown_beside_what_was_asked_for() {
        let size = ProgramSize {
            tenant: "acme".parse().unwrap(),
            program: "python train.py".into(),
            asked_share_ppm: 1_000_000,
            asked_memory: 40 << 30,
            share_ppm: 350_000,
            memory: 11 << 30,
            set_at_ms: 0,
            why: "12 earlier runs needed no more".into(),
        };
        assert_eq!(size_cells(&size)[2], "35%, 11 GiB (asked: 100%, 40 GiB)");
    }
}
