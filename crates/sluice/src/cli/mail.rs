//! The arguments of `sluice server` and `sluice up` about mail.

use std::path::PathBuf;

use clap::Args;
use sluice_server::MailConfig;

#[derive(Debug, Args)]
pub(crate) struct MailArgs {
    /// The mail server for webhooks with mailto: URLs: smtps://HOST[:PORT], or smtp://HOST[:PORT],
    /// which is encrypted by STARTTLS unless HOST is a loopback address
    #[arg(long, value_name = "URL", requires = "mail_from")]
    mail_server: Option<String>,

    /// The sender of mails, such as 'Sluice <sluice@example.com>'
    #[arg(long, value_name = "ADDRESS", requires = "mail_server")]
    mail_from: Option<String>,

    /// The name to sign in to the mail server with
    #[arg(long, value_name = "NAME", requires_all = ["mail_server", "mail_password_file"])]
    mail_user: Option<String>,

    /// A file with the password of --mail-user
    #[arg(long, value_name = "FILE", requires = "mail_user")]
    mail_password_file: Option<PathBuf>,

    /// A domain, such as example.com, to which webhooks of tenants may send mail; may be repeated.
    /// Webhooks of / may send to all
    #[arg(long, value_name = "DOMAIN", requires = "mail_server")]
    mail_domain: Vec<String>,
}

impl MailArgs {
    pub(crate) fn config(&self) -> Option<MailConfig> {
        Some(MailConfig {
            server: self.mail_server.clone()?,
            from: self.mail_from.clone()?,
            user: self.mail_user.clone(),
            password_file: self.mail_password_file.clone(),
            domains: self.mail_domain.clone(),
        })
    }
}
