/** A part of the page that cannot be drawn says so, and leaves the rest alone. */
import { Component, type ComponentChildren } from "preact";

import { Problem } from "../api/client";
import { Failed } from "./basics";

interface Props {
  /** What is drawn: when it becomes something else, drawing is tried again. */
  about: unknown;
  children: ComponentChildren;
  /** What stands there instead; without it, that it failed and a button to draw it again. */
  instead?: ComponentChildren;
}

export class Boundary extends Component<Props, { error?: unknown }> {
  override state: { error?: unknown } = {};

  override componentDidCatch(error: unknown): void {
    this.setState({ error });
  }

  override componentDidUpdate(before: Props): void {
    if (before.about !== this.props.about && this.state.error !== undefined) this.setState({ error: undefined });
  }

  override render({ children, instead }: Props) {
    const { error } = this.state;
    if (error === undefined) return children;
    if (instead !== undefined) return instead;
    return <Failed problem={new Problem(0, "page", "This part of the page could not be drawn.", String(error))} again={() => this.setState({ error: undefined })} />;
  }
}
