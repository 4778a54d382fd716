//! A layer for a `tracing-subscriber` registry.

use super::recorder::{Recorder, next_span};
use super::{Discover, live, site};
use tracing_core::metadata::LevelFilter;
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Dispatch, Event, Interest, Metadata, Subscriber};
use tracing_subscriber::filter::Filtered;
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

/// What [`layer`](super::layer) makes: the layer, with the filter that switches it.
pub type OwletLayer<S> = Filtered<Recording, Switch, S>;

/// Records the spans and events that its [`Switch`] lets through.
pub struct Recording {
    recorder: Recorder,
}

impl core::fmt::Debug for Recording {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Recording").finish_non_exhaustive()
    }
}

/// Lets through what a session has switched on.
#[derive(Debug)]
pub struct Switch {
    discover: Discover,
}

impl Switch {
    pub(crate) fn new() -> Self {
        Self { discover: Discover::new(true) }
    }
}

pub(crate) fn new<S>() -> OwletLayer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    Recording { recorder: Recorder::new() }.with_filter(Switch::new())
}

impl<S> Filter<S> for Switch {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        site::asked(metadata).is_some_and(site::Site::is_on)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match site::of(metadata) {
            Some(site) => {
                site.ensure();
                if site.is_on() { Interest::always() } else { Interest::never() }
            }
            None => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.discover.level())
    }
}

impl<S> Layer<S> for Recording
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        live::add(dispatch);
    }

    fn on_new_span(&self, attrs: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        if site::of(attrs.metadata()).is_some_and(site::Site::is_on) {
            self.recorder.open(id, next_span(), attrs, 0);
        }
    }

    fn on_record(&self, span: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some(known) = self.recorder.spans.find(span.into_u64()) {
            self.recorder.record(&known, values);
        }
    }

    fn on_follows_from(&self, span: &Id, follows: &Id, _: Context<'_, S>) {
        let spans = &self.recorder.spans;
        if let (Some(known), Some(cause)) =
            (spans.find(span.into_u64()), spans.find(follows.into_u64()))
        {
            self.recorder.follows(&known, &cause);
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if let Some(site) = site::of(event.metadata()) {
            self.recorder.event(site, event);
        }
    }

    fn on_enter(&self, id: &Id, _: Context<'_, S>) {
        if let Some(known) = self.recorder.spans.find(id.into_u64()) {
            self.recorder.enter(id, &known);
        }
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        if let Some(known) = self.recorder.spans.find(id.into_u64()) {
            self.recorder.exit(id, &known);
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        if let Some(known) = self.recorder.spans.find(id.into_u64()) {
            self.recorder.end(&known);
        }
    }
}
