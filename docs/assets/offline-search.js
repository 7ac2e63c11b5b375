// Browsers start no worker from a page that was opened from disk. The site's search is one, so on file:// pages it runs in a
// hidden frame instead: the frame takes the worker's script, and messages go back and forth as events.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.importScripts = () => {}  // stemmers of other languages, which an English site does not load
      const script = inner.document.createElement("script")
      script.src = url
      script.addEventListener("load", () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      })
      inner.document.body.append(script)
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    set onmessage(listener) { this.addEventListener("message", listener) }

    terminate() { this.frame.remove() }
  }
}
