//! The effects of keys in the viewer.

use fgraph_analysis::outliers::Slow;
use ratatui::crossterm::event::KeyCode;

use super::app::{App, TABS, Tab};
use crate::error::Error;
use crate::input::Part;

/// The most branches that are opened at once.
const MAX_OPENED: usize = 100_000;

impl App {
    /// Handles a key; `true` if it closes the screen.
    pub(super) fn key(&mut self, key: KeyCode) -> Result<bool, Error> {
        self.said = None;
        if let Some(text) = &mut self.typing {
            match key {
                KeyCode::Char(character) => text.push(character),
                KeyCode::Backspace => _ = text.pop(),
                KeyCode::Esc => self.typing = None,
                KeyCode::Enter => {
                    self.needle = self.typing.take().unwrap_or_default();
                    self.search(true, 0);
                }
                _ => {}
            }
            return Ok(false);
        }
        if std::mem::take(&mut self.has_help) {
            return Ok(false);
        }
        let (page, len) = (self.height, self.len());
        if self.cursor().moves(key, page, len) {
            return Ok(false);
        }
        match key {
            KeyCode::Char('q') | KeyCode::F(10) => return Ok(true),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.has_help = true,
            KeyCode::Char(digit @ '1'..='5') => self.tab = TABS[digit as usize - '1' as usize].0,
            KeyCode::Tab => self.tab = TABS[(self.tab as usize + 1) % TABS.len()].0,
            KeyCode::BackTab => {
                self.tab = TABS[(self.tab as usize + TABS.len() - 1) % TABS.len()].0
            }
            KeyCode::Char('/') => self.typing = Some(String::new()),
            KeyCode::Char('n') => self.search(true, 1),
            KeyCode::Char('N') => self.search(false, 1),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char(key @ ('s' | 't' | 'c' | 'a' | '9' | 'm' | 'o'))
                if self.tab == Tab::Report =>
            {
                self.sort = key;
                self.sort();
                self.go(0);
            }
            KeyCode::Char('*' | '_') if self.tab == Tab::Graph => self.open_all(key),
            KeyCode::Enter | KeyCode::Right | KeyCode::Left | KeyCode::Char('+' | '-') => {
                self.enter(key)?;
            }
            _ => {}
        }
        self.load()?;
        Ok(false)
    }

    /// Moves to the next line that contains the searched text, after `skip` lines.
    fn search(&mut self, is_down: bool, skip: usize) {
        let (len, from) = (self.len(), self.cursor().selected);
        let needle = self.needle.to_lowercase();
        let found = (skip..len.saturating_add(skip).min(len + 1)).find_map(|step| {
            let at = if is_down {
                from + step
            } else {
                from + len - step % len.max(1)
            };
            let at = at % len.max(1);
            let cells = self.cells(at);
            let text = cells.last().map(|text| text.to_lowercase());
            text.is_some_and(|text| text.contains(&needle))
                .then_some(at)
        });
        match found {
            Some(found) => self.go(found),
            None => self.said = Some("not found"),
        }
    }

    /// Opens the selected branch with all branches in it, or closes all.
    fn open_all(&mut self, key: KeyCode) {
        if key == KeyCode::Char('_') {
            self.is_open.fill(false);
            self.find_branches();
            self.go(0);
            return;
        }
        let selected = self.cursor().selected;
        let Some(&(node, _)) = self.branches.get(selected) else {
            return;
        };
        let mut rest = vec![node];
        let mut opened = 0;
        while let Some(node) = rest.pop() {
            opened += 1;
            if opened > MAX_OPENED {
                self.said = Some("not all are opened");
                break;
            }
            self.is_open[node as usize] = true;
            rest.extend(&self.model.tree.nodes[node as usize].children);
        }
        self.find_branches();
    }

    fn enter(&mut self, key: KeyCode) -> Result<(), Error> {
        let selected = self.cursor().selected;
        match self.tab {
            Tab::Report => {
                let Some(&function) = self.order.get(selected) else {
                    return Ok(());
                };
                self.show_in_graph(function as u32);
            }
            Tab::Graph => {
                let Some(&(node, _)) = self.branches.get(selected) else {
                    return Ok(());
                };
                let is_open = self.is_open[node as usize];
                let opens = match key {
                    KeyCode::Right | KeyCode::Char('+') => true,
                    KeyCode::Left | KeyCode::Char('-') => false,
                    _ => !is_open,
                };
                // From a closed branch, moves to its parent.
                if key == KeyCode::Left && !is_open {
                    let parent = self.model.tree.nodes[node as usize].parent;
                    let parent = self.branches.iter().position(|&(it, _)| it == parent);
                    self.go(parent.unwrap_or(selected));
                    return Ok(());
                }
                self.is_open[node as usize] = opens;
                self.find_branches();
            }
            Tab::Replay => {}
            Tab::Outliers => {
                let slow = self.slow.as_ref().and_then(|slow| slow.get(selected));
                let Some(&slow) = slow else {
                    return Ok(());
                };
                self.show_in_replay(&slow)?;
            }
            Tab::Threads => {
                let thread = self.model.followed.threads.get(selected);
                let Some(part) = thread.map(|thread| Part::from_time(0, thread.id)) else {
                    return Ok(());
                };
                if self.input.is_none() {
                    self.said = Some("a running program has no replay of one thread");
                    return Ok(());
                }
                self.load_replay(&part)?;
                self.tab = Tab::Replay;
                self.go(0);
            }
        }
        Ok(())
    }

    /// Shows the replay from the beginning of a call on.
    fn show_in_replay(&mut self, slow: &Slow) -> Result<(), Error> {
        let thread = &self.model.followed.threads[slow.thread];
        if self.input.is_some() {
            let since = slow.begin.saturating_sub(self.model.first());
            let from = self.model.clock.nanoseconds(since);
            let part = Part::from_time(from, thread.id);
            self.load_replay(&part)?;
        } else {
            let Some(at) = self.model.find_kept(slow.begin, thread.id) else {
                self.said = Some("the events of this call are not kept any more");
                return Ok(());
            };
            self.replay = Some(self.model.replay(at));
        }
        self.tab = Tab::Replay;
        self.go(0);
        Ok(())
    }

    /// Opens the branch in which a function takes the most time.
    fn show_in_graph(&mut self, line: u32) {
        let nodes = self.model.tree.nodes.iter().enumerate().skip(1);
        let of_function = nodes.filter(|(_, node)| node.slot == line);
        let Some((found, _)) = of_function.max_by_key(|(_, node)| node.total) else {
            self.said = Some("the graph is full: this function is not in it");
            return;
        };
        let found = found as u32;
        let mut parent = self.model.tree.nodes[found as usize].parent;
        while parent != 0 {
            self.is_open[parent as usize] = true;
            parent = self.model.tree.nodes[parent as usize].parent;
        }
        self.find_branches();
        self.tab = Tab::Graph;
        let at = self.branches.iter().position(|&(node, _)| node == found);
        self.go(at.unwrap_or(0));
    }
}
