//! Who could do what, and who did: the tokens of a tenant, and its part of the audit log.

use sluice_api::audit::Entry;
use sluice_api::identity::Identity;
use sluice_api::problem::Problem;
use sluice_api::report::ReportKind;
use sluice_api::tenant::TenantPath;
use sluice_api::token::Token;
use sluice_api::written::moment;

use super::{facts, time, title};
use crate::auth::Principal;
use crate::billing::Period;
use crate::concern::shown_to;
use crate::printed::{Column, Report, Section};
use crate::server::{Books, Server, unwell};
use crate::store::Store;

/// Rows of each table. A report with more says so.
const ROWS_MAX: usize = 2_000;
const PAGE: u32 = 1000;

const TOKENS: &[Column] = &[
    Column::text("Who", "who", 2.2),
    Column::text("Role", "role", 1.4),
    Column::text("Tenant", "tenant", 1.6),
    Column::text("Made", "at", 1.7),
    Column::text("Valid until", "valid_until", 1.7),
    Column::text("State", "state", 1.0),
];
const RULES: &[Column] =
    &[Column::text("Claim", "claim", 2.0), Column::text("Is", "is", 2.0), TOKENS[1], TOKENS[2]];
const ACTIONS: &[Column] = &[
    Column::text("At", "at", 1.7),
    TOKENS[0],
    Column::text("Action", "action", 1.6),
    Column::text("Subject", "subject", 1.6),
    Column::text("Detail", "detail", 4.0),
];

/// Makes the report of a tenant and all below it.
pub(crate) async fn compliance(
    server: &Server,
    principal: &Principal,
    tenant: &TenantPath,
    period: Period,
) -> Result<Report, Problem> {
    let store = &server.store;
    let now_ms = server.now_ms();
    let tokens = tokens(store, tenant, period).await?;
    let of_provider = |books: &Books, _| books.identity.clone();
    let identity = server.read(of_provider).await?;
    let (entries, is_cut) = entries(server, principal, tenant, period).await?;
    let mut sections = vec![token_section(&tokens, now_ms)];
    sections.extend(identity.map(|identity| rule_section(&identity, tenant)));
    sections.push(action_section(&entries));
    let seller = server.read(|books: &Books, _| books.seller.issuer.clone()).await?;
    let until = moment(period.until_ms.min(now_ms));
    let mut notes = vec![
        "Tokens are those that were valid at some time of the period. The audit log cannot be changed unnoticed: \
         `sluice audit verify` follows its chain of hashes. Times are in UTC."
            .to_owned(),
    ];
    if is_cut || tokens.len() >= ROWS_MAX {
        notes.push(format!("A table ends after {ROWS_MAX} rows; a shorter period shows the rest."));
    }
    Ok(Report {
        title: title(ReportKind::Compliance),
        issuer: seller.unwrap_or_default(),
        facts: facts(tenant, format!("{} to {until}", moment(period.from_ms)), now_ms),
        sections,
        notes,
    })
}

/// Returns the tokens for a tenant and those below it that were valid in the period.
async fn tokens(store: &Store, tenant: &TenantPath, period: Period) -> Result<Vec<Token>, Problem> {
    let mut tokens = Vec::new();
    let mut after = String::new();
    loop {
        let page = store.tokens(tenant, &after, PAGE).await.map_err(unwell)?;
        let is_last = page.len() < PAGE as usize;
        after = page.last().map(|stored| stored.token.id.clone()).unwrap_or_default();
        let was_valid =
            |token: &Token| token.created_at_ms < period.until_ms && token.expires_at_ms > period.from_ms;
        tokens.extend(page.into_iter().map(|stored| stored.token).filter(was_valid));
        if is_last || tokens.len() >= ROWS_MAX {
            tokens.truncate(ROWS_MAX);
            return Ok(tokens);
        }
    }
}

/// Returns the entries of the period that concern the tenant, and whether there are more than fit.
async fn entries(
    server: &Server,
    principal: &Principal,
    tenant: &TenantPath,
    period: Period,
) -> Result<(Vec<Entry>, bool), Problem> {
    let store = &server.store;
    // The whole log may be read for it.
    let _turn = server.audit_reads.acquire().await;
    let mut after = before(store, period.from_ms).await?;
    let mut found = Vec::new();
    loop {
        let page = match tenant.is_root() {
            true => store.audit(after, PAGE).await,
            false => store.audit_of_tenant(tenant, after, PAGE).await,
        };
        let page = page.map_err(unwell)?;
        let Some(last) = page.last() else { return Ok((found, false)) };
        after = last.sequence;
        for entry in page {
            if entry.at_ms >= period.until_ms {
                return Ok((found, false));
            }
            if entry.at_ms >= period.from_ms {
                found.push(shown_to(principal, entry));
            }
            if found.len() >= ROWS_MAX {
                return Ok((found, true));
            }
        }
    }
}

/// Finds an entry before which all are older than a moment. Entries are in the order of time, but
/// for clocks that were set; an hour more is looked through for that.
async fn before(store: &Store, at_ms: u64) -> Result<u64, Problem> {
    const CLOCKS_DIFFER_MS: u64 = 3_600_000;
    let at_ms = at_ms.saturating_sub(CLOCKS_DIFFER_MS);
    let (mut low, mut high) = (0, store.audit_head().await.map_err(unwell)?.sequence);
    while low < high {
        let middle = low + (high - low) / 2;
        let next = store.audit(middle, 1).await.map_err(unwell)?;
        match next.first() {
            Some(entry) if entry.at_ms < at_ms => low = middle + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

fn token_section(tokens: &[Token], now_ms: u64) -> Section {
    let row = |token: &Token| {
        let state = match () {
            () if token.revoked => "revoked",
            () if token.expires_at_ms <= now_ms => "expired",
            () => "valid",
        };
        vec![
            format!("{} ({})", token.id, token.name),
            token.role.name().to_owned(),
            token.tenant.to_string(),
            time(token.created_at_ms),
            time(token.expires_at_ms),
            state.to_owned(),
        ]
    };
    Section {
        key: "token",
        heading: "Who could do what: tokens",
        columns: TOKENS,
        rows: tokens.iter().map(row).collect(),
        empty: "There were no tokens.",
    }
}

fn rule_section(identity: &Identity, tenant: &TenantPath) -> Section {
    let rules = identity.rules.iter().filter(|rule| tenant.contains(&rule.tenant));
    let row = |rule: &sluice_api::identity::Rule| {
        let is = rule.is.as_str().map_or_else(|| rule.is.to_string(), str::to_owned);
        vec![rule.claim.clone(), is, rule.role.name().to_owned(), rule.tenant.to_string()]
    };
    Section {
        key: "rule",
        heading: "Who could do what: people of the identity provider",
        columns: RULES,
        rows: rules.map(row).collect(),
        empty: "No rule of the identity provider names this tenant.",
    }
}

fn action_section(entries: &[Entry]) -> Section {
    let row = |entry: &Entry| {
        vec![
            time(entry.at_ms),
            entry.actor.clone(),
            entry.action.clone(),
            entry.subject.clone(),
            entry.detail.clone(),
        ]
    };
    Section {
        key: "action",
        heading: "Who did what",
        columns: ACTIONS,
        rows: entries.iter().map(row).collect(),
        empty: "Nothing was done.",
    }
}
