//! Set-up and supervision: login, apply, tokens, leases, fences, the audit log.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use sluice_api::Page;
use sluice_api::audit::{Entry, Head, Verification};
use sluice_api::bill::{BeforeAndAfter, CostChange};
use sluice_api::client::{Settings, canonical, segment};
use sluice_api::health::{NewFence, Unfence};
use sluice_api::identity::Identity;
use sluice_api::lease::Lease;
use sluice_api::node::GpuStatus;
use sluice_api::pool::Pool;
use sluice_api::tenant::{Applied, DeclaredTenant};
use sluice_api::token::{MadeToken, NewToken, RevokedToken, Token};
use sluice_api::written::as_written;

use super::bills::signed;
use super::{client, leases, lists, login};
use crate::cli::{
    ApplyArgs, AtServer, AuditCommand, GpuCommand, IdentityCommand, LeaseCommand, ListArgs, LoginArgs,
    Output, PoolCommand, TenantCommand, TokenCommand,
};
use crate::moment::Moment;
use crate::progress::Progress;

/// Keeps a server and a token for it, once the server has taken the token.
pub(crate) fn log_in(arguments: &LoginArgs) -> Result<ExitCode> {
    let server = canonical(&arguments.server)?;
    let own_token = arguments.token || arguments.token_file.is_some();
    let provider = if own_token { None } else { login::provider_of(&server)? };
    let settings = match provider {
        Some(provider) => login::sign_in(server, &provider, arguments.device, arguments.port)?,
        None if arguments.device => bail!("{server} takes its own tokens only: `sluice login {server}`"),
        None => Settings { server, token: token_given(arguments)?, login: None },
    };
    let whose: Token = settings.client().get("/whoami")?;
    let path = settings.keep()?;
    eprintln!(
        "sluice: {} for {} on {}, kept in {}",
        whose.role.name(),
        whose.tenant,
        settings.server,
        path.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Removes the settings that `sluice login` keeps.
pub(crate) fn log_out() -> Result<ExitCode> {
    match Settings::forget()? {
        Some(known) if known.login.is_some() => {
            eprintln!("sluice: signed out of {}; its provider may still know this browser", known.server);
        }
        Some(known) => eprintln!(
            "sluice: the token for {} is no longer kept here; it holds until it expires or is revoked \
             (`sluice token revoke`)",
            known.server
        ),
        None => eprintln!("sluice: no token is kept here"),
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn whoami(arguments: &ListArgs) -> Result<ExitCode> {
    let client = client(&arguments.at)?;
    let whose: Token = client.get("/whoami")?;
    if arguments.output == Output::Json {
        println!("{}", serde_json::to_string_pretty(&whose)?);
        return Ok(ExitCode::SUCCESS);
    }
    let kind = if whose.is_of_provider() { "signed in with the identity provider" } else { "token" };
    println!("server   {}", client.server());
    println!("who      {} ({kind} {})", if whose.name.is_empty() { "-" } else { &whose.name }, whose.id);
    println!("role     {}", whose.role.name());
    println!("tenant   {}", whose.tenant);
    println!("expires  {}", Moment::from_ms(whose.expires_at_ms));
    Ok(ExitCode::SUCCESS)
}

fn token_given(arguments: &LoginArgs) -> Result<String> {
    let text = match &arguments.token_file {
        Some(path) => std::fs::read_to_string(path).with_context(|| path.display().to_string())?,
        None => {
            eprintln!("sluice: the token, then Enter:");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line)?;
            line
        }
    };
    Ok(text.trim().to_owned())
}

/// A lean build writes JSON, which is YAML as well (YAML 1.2, section 1.3).
fn yaml(declared: &serde_json::Value) -> Result<String> {
    #[cfg(feature = "full")]
    return Ok(serde_saphyr::to_string(declared)?);
    #[cfg(not(feature = "full"))]
    return Ok(format!("{declared:#}\n"));
}

pub(crate) fn apply(arguments: &ApplyArgs) -> Result<ExitCode> {
    let client = client(&arguments.at)?;
    let Some(file) = &arguments.file else {
        let declared: serde_json::Value = client.get("/declaration")?;
        print!("{}", yaml(&as_written(&declared))?);
        return Ok(ExitCode::SUCCESS);
    };
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        text
    } else {
        std::fs::read_to_string(file).with_context(|| file.display().to_string())?
    };
    let path = if arguments.dry_run { "/apply?dry_run=true" } else { "/apply" };
    let applied: Applied = client.post_text(path, "application/yaml", &text)?;
    for change in &applied.changes {
        println!("{change}");
    }
    applied.costs.iter().for_each(|change| println!("{}", cost_line(change)));
    if arguments.dry_run && !applied.changes.is_empty() {
        eprintln!("sluice: nothing was changed: this was a dry run");
    }
    for warning in &applied.warnings {
        eprintln!("sluice: {warning}");
    }
    if applied.changes.is_empty() {
        eprintln!("sluice: everything is as declared already");
    }
    Ok(ExitCode::SUCCESS)
}

/// What new prices change in money for a tenant.
fn cost_line(change: &CostChange) -> String {
    let arrow = |of: &BeforeAndAfter| format!("{} -> {}", signed(of.before_micro), signed(of.after_micro));
    let CostChange { tenant, until_now, last_30_days } = change;
    let past = match until_now.before_micro == until_now.after_micro {
        true => "what was used until now costs the same".to_owned(),
        false => format!("what was used until now: {}", arrow(until_now)),
    };
    format!("{tenant}: {past}; the last 30 days at these prices: {}", arrow(last_30_days))
}

pub(crate) fn tenant(command: &TenantCommand) -> Result<ExitCode> {
    let TenantCommand::Delete { at, path } = command;
    let removed: DeclaredTenant = client(at)?.delete(&format!("/tenants/{}", segment(path.as_str())))?;
    eprintln!("sluice: tenant {} is gone; what it has used stays on the bills", removed.path);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn pool(command: &PoolCommand) -> Result<ExitCode> {
    let PoolCommand::Delete { at, name } = command;
    let removed: Pool = client(at)?.delete(&format!("/pools/{}", segment(name)))?;
    eprintln!("sluice: pool {} is gone", removed.name);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn identity(command: &IdentityCommand) -> Result<ExitCode> {
    match command {
        IdentityCommand::Show { at } => {
            let identity: Identity = client(at)?.get("/identity")?;
            let declaration = serde_json::json!({ "identity": identity });
            println!("{}", serde_json::to_string_pretty(&declaration)?);
        }
        IdentityCommand::People(list) => lists::people(list)?,
        IdentityCommand::Remove { at } => {
            let removed: Identity = client(at)?.delete("/identity")?;
            eprintln!("sluice: tokens of {} are taken no more", removed.issuer);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn token(command: &TokenCommand) -> Result<ExitCode> {
    match command {
        TokenCommand::Create { at, tenant, role, lifetime, name, node } => {
            let new = NewToken {
                tenant: tenant.clone(),
                role: *role,
                name: name.clone(),
                lifetime_s: lifetime.duration().as_secs(),
                node: node.clone(),
            };
            let made: MadeToken = client(at)?.post("/tokens", &new)?;
            let expires = Moment::from_ms(made.token.expires_at_ms);
            eprintln!("sluice: token {}; it is shown this once, and expires at {expires}", made.token.id);
            println!("{}", made.secret);
        }
        TokenCommand::List(list) => lists::tokens(list)?,
        TokenCommand::Revoke { at, id, end_leases } => {
            let path = format!("/tokens/{id}?end_leases={end_leases}");
            let revoked: RevokedToken = client(at)?.delete(&path)?;
            eprintln!("sluice: token {} ({}) holds no more", revoked.token.id, revoked.token.name);
            if let Some(line) = leases_left(&revoked) {
                eprintln!("sluice: {line}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What became of the leases of a token that was revoked, if it had any.
fn leases_left(revoked: &RevokedToken) -> Option<String> {
    let ids: Vec<String> = revoked.leases.iter().map(|id| id.to_string()).collect();
    match (ids.is_empty(), revoked.ended) {
        (true, _) => None,
        (false, true) => Some(format!("ended with it: leases {}", ids.join(", "))),
        (false, false) => {
            Some(format!("these leases of it continue: {} (`sluice lease end ID` ends one)", ids.join(", ")))
        }
    }
}

pub(crate) fn lease(command: &LeaseCommand) -> Result<ExitCode> {
    match command {
        LeaseCommand::List(list) => lists::leases(list)?,
        LeaseCommand::Show { at, id, output } => leases::show(&client(at)?, *id, *output)?,
        LeaseCommand::End { at, id } => {
            let lease: Lease = client(at)?.delete(&format!("/leases/{id}"))?;
            eprintln!("sluice: lease {id} is {}", lease.state.name());
        }
        LeaseCommand::Preempt { at, id, task } => {
            let part = task.map_or_else(String::new, |task| format!("?task={task}"));
            let path = format!("/leases/{id}/preemptions{part}");
            let lease: Lease = client(at)?.post(&path, &serde_json::json!({}))?;
            match task {
                None => eprintln!("sluice: lease {id} is {}", lease.state.name()),
                Some(task) => {
                    eprintln!("sluice: task {task} of lease {id} has to make room; the others continue")
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn gpu(command: &GpuCommand) -> Result<ExitCode> {
    let gpus: Page<GpuStatus> = match command {
        GpuCommand::Facts(arguments) => {
            lists::gpu_facts(arguments)?;
            return Ok(ExitCode::SUCCESS);
        }
        GpuCommand::Fence { at, gpus, why, sessions } => {
            let fence = NewFence { gpus: gpus.clone(), why: why.clone(), sessions: *sessions };
            client(at)?.post("/gpus/fences", &fence)?
        }
        GpuCommand::Unfence { at, gpus, why } => {
            let unfence = Unfence { gpus: gpus.clone(), why: why.clone() };
            client(at)?.post("/gpus/unfences", &unfence)?
        }
    };
    for gpu in &gpus.items {
        let leases = match gpu.leases {
            0 => "nothing runs on it".to_owned(),
            1 => "1 lease is on it".to_owned(),
            leases => format!("{leases} leases are on it"),
        };
        let state = if gpu.fence.is_some() { "fenced" } else { "used" };
        eprintln!("sluice: {}/{} is {state}; {leases}", gpu.node, gpu.index);
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn audit(command: &AuditCommand) -> Result<ExitCode> {
    match command {
        AuditCommand::Log { at, tenant, actor } => {
            let mut failed = None;
            let options =
                [("tenant", tenant.as_ref().map(|tenant| tenant.as_str())), ("actor", actor.as_deref())];
            let options =
                options.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", segment(value?))));
            let options: Vec<String> = options.collect();
            let path = match options.is_empty() {
                true => "/audit".to_owned(),
                false => format!("/audit/latest?{}", options.join("&")),
            };
            client(at)?.each(&path, |entry: Entry| match serde_json::to_string(&entry) {
                Ok(line) => println!("{line}"),
                Err(error) => failed = Some(error),
            })?;
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        AuditCommand::Verify { at, anchor, new_anchor } => {
            let known = anchor.as_deref().map(read_anchor).transpose()?;
            if let Some(path) = new_anchor.as_deref().filter(|path| path.exists()) {
                bail!("{} is there already; --anchor checks it", path.display());
            }
            verify(at, known, anchor.as_deref().or(new_anchor.as_deref()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the log stood. Without the file nothing says so: to take that for a beginning would hide a
/// log that was rewritten.
fn read_anchor(path: &Path) -> Result<Head> {
    let text = std::fs::read_to_string(path).with_context(|| {
        let new = if path.exists() { "" } else { " (if there never was such a file, --new-anchor makes it)" };
        format!("{}{new}", path.display())
    })?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// The check is this program's own: the server is not asked whether it is right. What is found goes
/// into the file `anchor`.
fn verify(at: &AtServer, known: Option<Head>, anchor: Option<&Path>) -> Result<()> {
    let mut verification = Verification::new(known);
    let (mut count, mut progress) = (0_u64, Progress::new());
    let mut broken = None;
    client(at)?.each("/audit?limit=1000", |entry: Entry| {
        count += 1;
        progress.at(|| format!("{count} entries followed"));
        if broken.is_none() {
            broken = verification.follow(&entry).err();
        }
    })?;
    drop(progress);
    let head = match broken.map_or_else(|| verification.end(), Err) {
        Ok(head) => head,
        Err(broken) => bail!("the audit log has been tampered with: {broken}"),
    };
    println!("{} entries, none changed; the last has hash {}", head.sequence, head.hash);
    if let Some(path) = anchor {
        let text = serde_json::to_string(&head)?;
        std::fs::write(path, format!("{text}\n")).with_context(|| path.display().to_string())?;
        eprintln!(
            "sluice: {} says so now; keep it where the server's operators cannot write",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_that_is_not_there_is_an_error_that_says_how_to_make_one() {
        let folder = std::env::temp_dir().join(format!("sluice-anchor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("anchor.json");
        let at = || AtServer { server: Some("http://127.0.0.1:1".into()) };
        let verify = |anchor: Option<&Path>, new_anchor: Option<&Path>| {
            let [anchor, new_anchor] = [anchor, new_anchor].map(|path| path.map(Path::to_owned));
            let result = audit(&AuditCommand::Verify { at: at(), anchor, new_anchor });
            format!("{:#}", result.unwrap_err())
        };
        let missing = verify(Some(&path), None);
        assert!(missing.contains("--new-anchor") && !path.exists(), "{missing}");
        std::fs::write(&path, r#"{"sequence":1,"hash":"00"}"#).unwrap();
        assert_eq!(read_anchor(&path).unwrap().sequence, 1);
        let there = verify(None, Some(&path));
        assert!(there.contains("--anchor checks it"), "{there}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
