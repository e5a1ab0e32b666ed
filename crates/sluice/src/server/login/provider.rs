//! Signing in at an identity provider: in a browser (authorization code with PKCE, RFC 7636 and
//! 8252), or with a code that is typed elsewhere (RFC 8628); and renewing what it gave.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use openidconnect::core::{
    CoreAuthDisplay, CoreAuthenticationFlow, CoreClaimName, CoreClaimType, CoreClient, CoreClientAuthMethod,
    CoreDeviceAuthorizationResponse, CoreGrantType, CoreJsonWebKey, CoreJweContentEncryptionAlgorithm,
    CoreJweKeyManagementAlgorithm, CoreResponseMode, CoreResponseType, CoreSubjectIdentifierType,
    CoreTokenResponse,
};
use openidconnect::{
    AdditionalProviderMetadata, AuthorizationCode, ClientId, CsrfToken, DeviceAuthorizationUrl, IssuerUrl,
    Nonce, OAuth2TokenResponse, PkceCodeChallenge, ProviderMetadata, RedirectUrl, RefreshToken, Scope,
    TokenResponse,
};
use serde::{Deserialize, Serialize};
use sluice_api::client::{Kept, Settings, Web};
use sluice_api::token::Login;

use super::open;

/// A person signs in within this time.
const SIGN_IN_TIME_MAX: Duration = Duration::from_secs(600);
/// Bytes of the first line of a browser's request.
const LINE_MAX: u64 = 16 << 10;

/// What a provider says of itself, and where devices ask.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Devices {
    device_authorization_endpoint: Option<DeviceAuthorizationUrl>,
}

impl AdditionalProviderMetadata for Devices {}

type Metadata = ProviderMetadata<
    Devices,
    CoreAuthDisplay,
    CoreClientAuthMethod,
    CoreClaimName,
    CoreClaimType,
    CoreGrantType,
    CoreJweContentEncryptionAlgorithm,
    CoreJweKeyManagementAlgorithm,
    CoreJsonWebKey,
    CoreResponseMode,
    CoreResponseType,
    CoreSubjectIdentifierType,
>;

/// Has a person sign in, and gives what is to be kept.
pub(in crate::server) fn sign_in(server: String, login: &Login, device: bool, port: u16) -> Result<Settings> {
    let web = Web::new().map_err(anyhow::Error::msg)?;
    let metadata = discover(&web, &login.issuer)?;
    let (response, nonce) = match device {
        true => (with_device(&web, metadata.clone(), login)?, None),
        false => {
            let (response, nonce) = with_browser(&web, metadata.clone(), login, port)?;
            (response, Some(nonce))
        }
    };
    let given = response
        .id_token()
        .context("the provider gave no ID token; is the scope openid among its scopes?")?;
    let client = CoreClient::from_provider_metadata(metadata, ClientId::new(login.client_id.clone()), None);
    let verifier = client.id_token_verifier().allow_any_alg();
    // A device code has no nonce; it came over the connection that asked for it.
    let expected = |got: Option<&Nonce>| match (&nonce, got) {
        (Some(sent), Some(got)) if sent.secret() == got.secret() => Ok(()),
        (None, _) => Ok(()),
        _ => Err("it is not the answer to this request".to_owned()),
    };
    given.claims(&verifier, expected).context("the provider's ID token does not hold")?;
    Ok(Settings {
        server,
        token: given.to_string(),
        login: Some(Kept {
            issuer: login.issuer.clone(),
            client_id: login.client_id.clone(),
            refresh_token: response.refresh_token().map(|token| token.secret().clone()),
        }),
    })
}

fn discover(web: &Web, issuer: &str) -> Result<Metadata> {
    let url = IssuerUrl::new(issuer.to_owned()).with_context(|| issuer.to_owned())?;
    Metadata::discover(&url, &|request| web.ask(request))
        .with_context(|| format!("the identity provider {issuer}"))
}

fn scopes(login: &Login) -> impl Iterator<Item = Scope> {
    // It is there anyhow.
    login.scopes.iter().filter(|scope| *scope != "openid").cloned().map(Scope::new)
}

fn with_browser(
    web: &Web,
    metadata: Metadata,
    login: &Login,
    port: u16,
) -> Result<(CoreTokenResponse, Nonce)> {
    let listener =
        TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("port {port} of this machine"))?;
    let back = format!("http://127.0.0.1:{}/callback", listener.local_addr()?.port());
    let client = CoreClient::from_provider_metadata(metadata, ClientId::new(login.client_id.clone()), None)
        .set_redirect_uri(RedirectUrl::new(back)?);
    let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
    let (url, state, nonce) = client
        .authorize_url(CoreAuthenticationFlow::AuthorizationCode, CsrfToken::new_random, Nonce::new_random)
        .add_scopes(scopes(login))
        .set_pkce_challenge(challenge)
        .url();
    eprintln!(
        "sluice: sign in at\n\n    {url}\n\nin a browser on this machine; `sluice login --device` is for one elsewhere"
    );
    open(url.as_str());
    let code = answer(listener, &state)?;
    let response = client.exchange_code(AuthorizationCode::new(code))?.set_pkce_verifier(verifier);
    let response = response.request(&|request| web.ask(request));
    Ok((response.context("the provider gave no token for the code")?, nonce))
}

fn with_device(web: &Web, metadata: Metadata, login: &Login) -> Result<CoreTokenResponse> {
    let endpoint = metadata.additional_metadata().device_authorization_endpoint.clone();
    let endpoint = endpoint.with_context(|| format!("{} has no sign-in for devices", login.issuer))?;
    let client = CoreClient::from_provider_metadata(metadata, ClientId::new(login.client_id.clone()), None)
        .set_device_authorization_url(endpoint);
    let device: CoreDeviceAuthorizationResponse = client
        .exchange_device_code()
        .add_scopes(scopes(login))
        .request(&|request| web.ask(request))
        .context("the provider gave no code")?;
    let whole = device.verification_uri_complete().map(|url| format!(" (or at once: {})", url.secret()));
    eprintln!(
        "sluice: sign in at {} with the code {}{}",
        device.verification_uri().as_str(),
        device.user_code().secret(),
        whole.unwrap_or_default()
    );
    client
        .exchange_device_access_token(&device)?
        .request(&|request| web.ask(request), std::thread::sleep, Some(SIGN_IN_TIME_MAX))
        .context("no user signed in")
}

/// A new token, and the refresh token for the next one if the provider gave another.
pub(super) fn renew(login: &Kept, refresh: String) -> Result<(String, Option<String>)> {
    let web = Web::new().map_err(anyhow::Error::msg)?;
    let metadata = discover(&web, &login.issuer)?;
    let client = CoreClient::from_provider_metadata(metadata, ClientId::new(login.client_id.clone()), None);
    let refresh = RefreshToken::new(refresh);
    let response = client.exchange_refresh_token(&refresh)?.request(&|request| web.ask(request));
    let response = response.context("the provider does not renew the token")?;
    let given = response.id_token().context("the provider gave no ID token")?;
    // The server checks the rest; a nonce is repeated or left out here (OpenID Connect Core 1.0,
    // section 12.2).
    given.claims(&client.id_token_verifier().allow_any_alg(), |_: Option<&Nonce>| Ok(()))?;
    let refresh_token = response.refresh_token().map(|token| token.secret().clone());
    Ok((given.to_string(), refresh_token))
}

/// The code that the browser brings back.
fn answer(listener: TcpListener, state: &CsrfToken) -> Result<String> {
    let (sender, receiver) = mpsc::channel();
    let state = state.secret().clone();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            // A client that connects and sends nothing does not keep the browser waiting.
            let (sender, state) = (sender.clone(), state.clone());
            std::thread::spawn(move || {
                if let Some(brought) = brought(socket, &state) {
                    let _ = sender.send(brought);
                }
            });
        }
    });
    receiver.recv_timeout(SIGN_IN_TIME_MAX).context("no user signed in")?
}

/// What a request to the callback brings; none if it is another request.
fn brought(mut socket: TcpStream, state: &str) -> Option<Result<String>> {
    socket.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut line = String::new();
    BufReader::new(std::io::Read::take(&socket, LINE_MAX)).read_line(&mut line).ok()?;
    let path = line.strip_prefix("GET ")?.split(' ').next()?;
    let url = openidconnect::url::Url::parse("http://127.0.0.1").ok()?.join(path).ok()?;
    if url.path() != "/callback" {
        let _ = socket.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return None;
    }
    let value =
        |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let result = match (value("code"), value("error")) {
        // Another page's request, or a forged one.
        _ if value("state").as_deref() != Some(state) => None,
        (Some(code), None) => Some(Ok(code)),
        (_, error) => {
            let error =
                [error, value("error_description")].into_iter().flatten().collect::<Vec<_>>().join(": ");
            Some(Err(anyhow::anyhow!("the provider refused: {error}")))
        }
    };
    let text = match &result {
        Some(Ok(_)) => "You are signed in; this page can be closed.",
        Some(Err(_)) => "You are not signed in; the terminal says why.",
        None => "This is not the answer to the request that waits here.",
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close";
    let _ = write!(socket, "{head}\r\nContent-Length: {}\r\n\r\n{text}", text.len());
    result
}
