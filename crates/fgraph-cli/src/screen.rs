//! The terminal as a screen of lines, and keys. Its previous state is restored when the screen is
//! dropped, and when the process panics.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::panic;
use std::sync::Once;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::{self, terminal};
use ratatui::prelude::CrosstermBackend;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Terminal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Error;
use crate::output::{is_screen, take_terminal};
use crate::text::{cut, width};

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looks {
    Plain,
    Heading,
    Selected,
}

/// An input at the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pressed {
    /// Ctrl-C.
    Interrupt,
    Key(KeyCode),
    /// The size has changed.
    Resized,
}

/// The terminal of standard output.
#[derive(Debug)]
pub(crate) struct Screen {
    /// Never dropped: its own drop panics if the terminal is gone, since it prints that.
    terminal: ManuallyDrop<DefaultTerminal>,
    /// The terminal from which keys are read.
    keys: OwnedFd,
}

impl Screen {
    /// Returns true if there is a terminal for it.
    pub(crate) fn is_there() -> bool {
        is_screen()
    }

    /// Takes the terminal.
    pub(crate) fn open() -> Result<Self, Error> {
        let keys = keys().map_err(Error::Output)?;
        restore_on_panic();
        match begin() {
            Ok(terminal) => {
                let terminal = ManuallyDrop::new(terminal);
                Ok(Self { terminal, keys })
            }
            Err(error) => {
                let _ = ratatui::try_restore();
                Err(Error::Output(error))
            }
        }
    }

    /// Shows the lines that are made for this number of columns and rows.
    pub(crate) fn draw(
        &mut self,
        make: impl FnOnce(usize, usize) -> Vec<(String, Looks)>,
    ) -> Result<(), Error> {
        let drawn = self.terminal.draw(|frame| {
            let area = frame.area();
            let columns = area.width.into();
            let lines = make(columns, area.height.into());
            let lines = lines.into_iter().map(|(line, looks)| {
                let mut line = cut(&line, columns).into_owned();
                let style = match looks {
                    Looks::Plain => Style::new(),
                    Looks::Heading => Style::new().add_modifier(Modifier::BOLD),
                    Looks::Selected => {
                        line.push_str(&" ".repeat(columns.saturating_sub(width(&line))));
                        Style::new().add_modifier(Modifier::REVERSED)
                    }
                };
                Line::styled(line, style)
            });
            frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
        });
        drawn.map(drop).map_err(Error::Output)
    }

    /// Returns the input at the terminal within this time, if there is any. A terminal that is gone
    /// interrupts repeatedly.
    pub(crate) fn pressed(&mut self, time: Duration) -> Result<Option<Pressed>, Error> {
        // crossterm reads a terminal that is gone without end, so it must not wait for keys itself.
        // A signal, as for a new size, ends the wait early.
        let mut polled = [PollFd::new(&self.keys, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        if poll(&mut polled, time.as_ref()).is_ok() && polled[0].revents().contains(PollFlags::HUP)
        {
            return Ok(Some(Pressed::Interrupt));
        }
        if !event::poll(Duration::ZERO).map_err(Error::Output)? {
            return Ok(None);
        }
        Ok(match event::read().map_err(Error::Output)? {
            Event::Key(key) if key.kind == KeyEventKind::Release => None,
            Event::Key(key) => {
                let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
                Some(match key.code {
                    KeyCode::Char('c') if is_control => Pressed::Interrupt,
                    code => Pressed::Key(code),
                })
            }
            Event::Resize(..) => Some(Pressed::Resized),
            _ => None,
        })
    }
}

fn begin() -> io::Result<DefaultTerminal> {
    take_terminal();
    terminal::enable_raw_mode()?;
    crossterm::execute!(io::stdout(), terminal::EnterAlternateScreen)?;
    Terminal::new(CrosstermBackend::new(io::stdout()))
}

/// Lets a panic restore the terminal before it says why. `ratatui`'s own hook panics itself if the
/// terminal is gone.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let _ = ratatui::try_restore();
            hook(info);
        }));
    });
}

/// Returns the terminal from which crossterm reads keys.
fn keys() -> io::Result<OwnedFd> {
    let input = io::stdin();
    match input.is_terminal() {
        true => input.as_fd().try_clone_to_owned(),
        false => Ok(File::open("/dev/tty")?.into()),
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// Returns the lines of a screen: a head, a table with its headings, and a foot at the bottom.
/// `selected` is the line of the table below the headings.
pub(crate) fn page(
    head: (String, Looks),
    table: Vec<String>,
    selected: usize,
    foot: String,
    height: usize,
) -> Vec<(String, Looks)> {
    let mut lines = vec![head];
    for (at, line) in table.into_iter().enumerate() {
        let looks = match at.checked_sub(1) {
            None => Looks::Heading,
            Some(at) if at == selected => Looks::Selected,
            Some(_) => Looks::Plain,
        };
        lines.push((line, looks));
    }
    lines.resize(
        height.saturating_sub(1).max(1),
        (String::new(), Looks::Plain),
    );
    lines.push((foot, Looks::Heading));
    lines
}

/// The visible part of a list, and the selected line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    pub(crate) selected: usize,
    pub(crate) top: usize,
}

impl Cursor {
    /// Returns the first visible line, for `room` lines of a list.
    pub(crate) fn see(&mut self, room: usize, len: usize) -> usize {
        self.selected = self.selected.min(len.saturating_sub(1));
        let first = (self.selected + 1).saturating_sub(room);
        self.top = self.top.clamp(first, self.selected);
        self.top
    }

    /// Handles a key that moves the cursor; `false` if it does not.
    pub(crate) fn moves(&mut self, key: KeyCode, page: usize, len: usize) -> bool {
        let to = match key {
            KeyCode::Down | KeyCode::Char('j') => self.selected + 1,
            KeyCode::Up | KeyCode::Char('k') => self.selected.saturating_sub(1),
            KeyCode::PageDown => self.selected + page,
            KeyCode::PageUp => self.selected.saturating_sub(page),
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX,
            _ => return false,
        };
        self.selected = to.min(len.saturating_sub(1));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use fgraph_needs::{TMUX, needs};

    use super::*;

    /// Set in the terminal in which the test runs again, and panics.
    const INSIDE: &str = "FGRAPH_TEST_PANICS";

    #[test]
    fn a_panic_leaves_the_terminal_as_it_was() {
        if std::env::var_os(INSIDE).is_some() {
            let mut screen = Screen::open().unwrap();
            screen.draw(|_, _| panic!("while it draws")).unwrap();
        }
        let tmux = needs!(TMUX.find());
        let directory = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| {
            let mut command = Command::new(&tmux);
            command.arg("-S").arg(directory.path().join("tmux"));
            command.current_dir(directory.path()).args(arguments);
            command.output().unwrap()
        };
        let this = std::env::current_exe().unwrap();
        let test = "screen::tests::a_panic_leaves_the_terminal_as_it_was";
        let command = format!(
            "stty -a > before; RUST_BACKTRACE=0 {INSIDE}=1 '{}' --exact {test} --nocapture; \
             stty -a > after; echo over; cat",
            this.display()
        );
        run(&["-f", "/dev/null", "new-session", "-d", &command]);
        let begin = Instant::now();
        let shown = loop {
            let shown = run(&["capture-pane", "-p"]);
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            if shown.contains("over") || begin.elapsed() > Duration::from_secs(60) {
                break shown;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let is_alternate = run(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        run(&["kill-server"]);
        assert!(shown.contains("while it draws"), "{shown}");
        assert_eq!(is_alternate.stdout, b"0 1\n", "{shown}");
        let modes = |name| std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(modes("after"), modes("before"));
    }
}
