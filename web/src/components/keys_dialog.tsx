import { allShortcuts } from "../keys";
import { Dialog } from "./dialog";

export function KeysDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <table class="data">
        <caption class="visually-hidden">Keyboard shortcuts of this screen</caption>
        <tbody>
          {allShortcuts().map((each) => (
            <tr key={each.keys}>
              <td class="nowrap">
                {each.keys.split(" ").map((key) => (
                  <>
                    <kbd>{key}</kbd>{" "}
                  </>
                ))}
              </td>
              <td>{each.what}</td>
            </tr>
          ))}
          <tr>
            <td>
              <kbd>Esc</kbd>
            </td>
            <td>Close a dialog, leave the search</td>
          </tr>
        </tbody>
      </table>
    </Dialog>
  );
}
